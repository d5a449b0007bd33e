"""How the demo checkpoint of wake words is made: a program's voices say many words in many rooms."""
