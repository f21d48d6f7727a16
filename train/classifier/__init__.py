"""The parts of the text classifier, and how they are fitted."""
