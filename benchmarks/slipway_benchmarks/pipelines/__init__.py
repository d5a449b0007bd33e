"""Whole videos and worlds through Triton, and a checkpoint of public size from export to answer."""
