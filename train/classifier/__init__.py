"""What the text classifier is built from and fitted with."""
