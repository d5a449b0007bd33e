"""Matrix-Game 2.0's network: a causal Wan transformer that a mouse and a keyboard steer.

Upstream's `config.json` (:mod:`.config`) describes the network; :mod:`.network` implements it with upstream's
key names, and :mod:`.weights` loads it from upstream's safetensors. It runs in two ways whose results agree
block by block: over all frames of a video at once (:mod:`.whole`), and on one block of frames at a time, with
the keys and values of earlier frames as inputs and outputs (:mod:`.cached`). :mod:`.inference` reads
upstream's settings of a mode, and :mod:`.presets` writes random checkpoints in the public layout.
"""
