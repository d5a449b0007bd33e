"""Wake words inside Triton: features of audio, a decision for each word, streams of audio."""
