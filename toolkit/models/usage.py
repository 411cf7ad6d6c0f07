"""How a trained model is used, as code for its card, by the name that the hub has for its task."""

from collections.abc import Mapping

LINES = {
    "text-classification": """
        from transformers import pipeline

        classify = pipeline("text-classification", "<this folder>", truncation=True, top_k=None)
        print(classify([{text}]))""",
    "token-classification": """
        from transformers import pipeline

        tag = pipeline("token-classification", "<this folder>", aggregation_strategy="first")
        print(tag("A text whose words are tagged."))""",
    "image-classification": """
        from transformers import pipeline

        classify = pipeline("image-classification", "<this folder>")
        print(classify("image.png"))""",
    "text-generation": """
        from transformers import pipeline

        write = pipeline("text-generation", "<this folder>")
        print(write("How a text begins", max_new_tokens=50)[0]["generated_text"])""",
    "fill-mask": """
        from transformers import pipeline

        fill = pipeline("fill-mask", "<this folder>")
        print(fill(f"A text with a {fill.tokenizer.mask_token} in it."))""",
}
PAIR = '{"text": "one text", "text_pair": "another text"}'
CHAT_LINES = """
        from transformers import pipeline

        reply = pipeline("text-generation", "<this folder>")
        messages = [{"role": "user", "content": "What can you do?"}]
        print(reply(messages, max_new_tokens=200)[0]["generated_text"][-1]["content"])"""
VECTOR_LINES = """
        from sentence_transformers import SentenceTransformer

        model = SentenceTransformer("<this folder>")
        vectors = model.encode(["one text", "another text"])
        print(model.similarity(vectors, vectors))"""


def usage_of(pipeline_tag: str, inputs: Mapping[str, str]) -> str:
    """Return code that loads and uses a model by `transformers.pipeline`, as a block of Markdown.

    Args:
        pipeline_tag: the name of the task on the hub.
        inputs: the columns that it was trained on, by the part that they play; a pair of texts is used as one.
    """
    lines = LINES.get(pipeline_tag)
    if lines is None:
        return f'Load it with `transformers.pipeline("{pipeline_tag}", "<this folder>")`.'
    return code(lines.replace("{text}", PAIR if "text_pair" in inputs else '"one text", "another text"'))


def code(lines: str) -> str:
    """Return lines of Python, indented by eight blanks, as a block of Markdown."""
    plain = "\n".join(line[8:] for line in lines.strip("\n").splitlines())
    return f"```python\n{plain}\n```"


CHAT = code(CHAT_LINES)
"""How a model that replies to messages is used."""
VECTORS = code(VECTOR_LINES)
"""How a model that makes texts into vectors is used."""
