"""Quality of served checkpoints: whether their answers mean what they should."""
