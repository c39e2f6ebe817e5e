"""Model families: backbones from transformers, action heads of our own."""
