"""What is measured of a model before it serves: its logits, and rows that stay apart.

May import the batch, masks and attention's interface; never the model that it measures.
"""
