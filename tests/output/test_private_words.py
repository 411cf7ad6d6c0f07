"""Tokens and passwords never come into what others read, and other words stay."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit.output.private_words import HIDDEN, has_secret, settings_without_secrets, without_secrets

TOKEN = "hf_" + "aB3" * 11


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"with {TOKEN}.", f"with {HIDDEN}."),
        (f"python x.py --hub.token={TOKEN} --epochs 3", f"python x.py --hub.token={HIDDEN} --epochs 3"),
        ("--token abc --epochs 3", f"--token {HIDDEN} --epochs 3"),
        ("--wandb.api_key 'a b' --x 1", f"--wandb.api_key {HIDDEN} --x 1"),
        ("--data.password=hunter2", f"--data.password={HIDDEN}"),
        ("https://ann:pass@host.example/x.csv", "https://host.example/x.csv"),
        ("s3://key@bucket/x", "s3://bucket/x"),
        ("https://h/x?token=abc&rows=3", f"https://h/x?token={HIDDEN}&rows=3"),
        ("https://h/x?X-Amz-Signature=0a1b&b=2", f"https://h/x?X-Amz-Signature={HIDDEN}&b=2"),
        ("ghp_" + "a" * 36, HIDDEN),
        ("sk-" + "a" * 40, HIDDEN),
        ("--batch.micro_tokens 4096 --predict.tokens 5", None),
        ("<|token|> the pad_token is [PAD], 3 tokens; hf_hub, sk-learn, secret and password", None),
        ("--token --epochs 3", None),
        ("mail to ann@host.example, see https://host.example/@ann", None),
    ],
)  # fmt: skip
def test_secrets_are_hidden_and_nothing_else(text: str, expected: str | None) -> None:
    assert without_secrets(text) == (text if expected is None else expected)


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("from https://me:hunter2secret@host/x.csv", True),
        ("s3://key@bucket/x", True),
        ("https://h/x?b=2&X-Amz-Signature=0a1b2c", True),
        ("--hub.token abcdef1", True),
        ('{"api_key": "abc1def"}', True),
        ('{"hub": {"token" : "abc1def", "x": 1}}', True),
        ('{"tracker.wandb_api-key": "abc1def"}', True),
        ('{"aws_secret_access_key": "abc1def"}', True),
        (f'python x.py --hub.token={HIDDEN} https://h/x?token={HIDDEN} {{"password": "{HIDDEN}"}}', False),
        ("--token $HF_TOKEN --wandb.api_key '<your key>' https://me:$PASSWORD@host/x --token YOUR_TOKEN", False),
        ('{"pad_token": "<pad>", "eos_token": "end", "image_token": "img", "use_auth_token": true}', False),
        ('{"token": null, "password": ""}', False),
        ("pip install git+https://git@host.example/x, https://host.example/@ann, ann@host.example", False),
    ],
)  # fmt: skip
def test_what_must_not_be_sent_is_found(text: str, is_one: bool) -> None:
    assert has_secret(text) == is_one


def test_what_the_environment_holds_is_a_secret_whatever_its_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "plain-looking-words")
    monkeypatch.setenv("SHORT_TOKEN", "data")
    assert without_secrets("it is plain-looking-words of data") == f"it is {HIDDEN} of data"
    assert has_secret("it is plain-looking-words")
    assert not has_secret("data")


def test_settings_are_hidden_by_their_names_too() -> None:
    given = {"hub": {"token": "abc", "tokens": 5}, "data": {"train": ["https://a:b@h/x.csv"], "password": "x"}}
    assert settings_without_secrets(given) == {
        "hub": {"token": HIDDEN, "tokens": 5},
        "data": {"train": ["https://h/x.csv"], "password": HIDDEN},
    }


@settings(deadline=None)  # it looks for the token of this machine each time
@given(st.text(max_size=60), st.text(max_size=60), st.from_regex(r"hf_[A-Za-z0-9]{20,40}", fullmatch=True))
def test_no_token_is_left_wherever_it_stands(before: str, after: str, token: str) -> None:
    told = without_secrets(f"{before} {token} {after}")
    assert token not in told
    assert without_secrets(told) == told
