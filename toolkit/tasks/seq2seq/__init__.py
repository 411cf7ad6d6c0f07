"""From one text to another: models with an encoder and a decoder."""
