"""PyTorch's own layers for many runs at once: attention, recurrent layers, bags of embeddings, weight norm."""
