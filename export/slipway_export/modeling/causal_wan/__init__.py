"""Matrix-Game 2.0's network: a causal Wan transformer that is steered by a mouse and a keyboard.

Upstream's `config.json` (:mod:`.config`) says which network it is; :mod:`.network` has it with upstream's
key names, and :mod:`.weights` loads it from upstream's safetensors. It runs in two ways that agree block by
block: over all frames of a video at once (:mod:`.whole`), and one block of frames at a time with the keys and
values of the frames before it as tensors in and out (:mod:`.cached`). :mod:`.inference` reads what upstream
says of a mode, and :mod:`.presets` writes small random checkpoints in the public layout.
"""
