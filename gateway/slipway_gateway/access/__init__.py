"""Keys of the API and what each of them may ask for."""
