"""Token classification: sentences of words with a tag each."""
