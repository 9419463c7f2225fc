"""Kernels and model steps on a device, one file for each part."""
