"""Which device a model runs on, what CUDA alone has, copies to and from it.

May import errors.
"""
