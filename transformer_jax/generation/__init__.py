"""Text generation: sampling, beam search and the jitted generation loop."""
