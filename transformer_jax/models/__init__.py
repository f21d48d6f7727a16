"""Complete models composed from the layers of `transformer_jax.nn`."""
