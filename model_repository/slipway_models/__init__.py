"""Authored models: the Python models and ensembles that an export places around its graphs."""

from pathlib import Path

FOLDER = Path(__file__).resolve().parent
"""Folder of the models' folders."""
