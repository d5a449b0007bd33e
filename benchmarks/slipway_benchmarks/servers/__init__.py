"""Wake words under load: Triton beside LitServe."""
