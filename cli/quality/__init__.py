"""What rounding weights costs: a model against itself in float32, on a text that comes along.

text.txt: the beginning of Alice's Adventures in Wonderland (Lewis Carroll, 1865, public domain) and
Python of this repository (Apache-2.0).
"""
