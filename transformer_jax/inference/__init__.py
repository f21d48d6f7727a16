"""Trained models applied to texts: classify, embed, fill masks, translate."""
