"""Language models and sentence embeddings."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tercet
from conftest import DATA


@pytest.fixture(scope="module")
def model(tiny_gguf: Path) -> tercet.LanguageModel:
    loaded = tercet.load(tiny_gguf, device="cpu")
    assert isinstance(loaded, tercet.LanguageModel)
    return loaded


def test_a_text_is_an_iterator_of_pieces(model: tercet.LanguageModel) -> None:
    text = model.generate("Ownership is", 24)
    pieces = list(text)
    assert len(pieces) > 5 and text.finish_reason == "length"
    assert text.tokens is not None and len(text.tokens) == 24
    assert model.decode(text.tokens) == "".join(pieces)
    assert list(text) == []
    assert model.generate("Ownership is", 24).text() == "".join(pieces)


def test_a_choice_is_of_its_text_alone(model: tercet.LanguageModel) -> None:
    plain = model.generate("Ownership is", 24).text()
    changed = {
        model.generate("Ownership is", 24, presence_penalty=2.0).text(),
        model.generate("Ownership is", 24, frequency_penalty=2.0).text(),
        model.generate("Ownership is", 24, repetition_penalty=50.0).text(),
    }
    assert plain not in changed
    assert model.generate("Ownership is", 24, temperature=2.0, min_p=1.0, seed=3).text() == plain
    first = model.encode(plain, special=False)[0]
    other = model.generate("Ownership is", 1, logit_bias={first: float("-inf")})
    other.text()
    assert other.tokens is not None and first not in other.tokens
    assert model.generate("Ownership is", 24).text() == plain


def test_a_text_is_what_it_has_to_be(model: tercet.LanguageModel) -> None:
    schema = {
        "type": "object",
        "properties": {"safe": {"type": "boolean"}, "kind": {"enum": ["move", "copy"]}, "n": {"type": "integer", "minimum": 0, "maximum": 99}},
        "required": ["safe", "kind", "n"],
        "additionalProperties": False,
    }
    for more in [{}, {"temperature": 1.5, "seed": 3}]:
        text = model.generate("Ownership is", 200, json_schema=schema, **more)  # type: ignore[arg-type]
        found = json.loads(text.text())
        assert text.finish_reason == "end"
        assert set(found) == {"safe", "kind", "n"} and found["kind"] in ("move", "copy") and 0 <= found["n"] <= 99
    assert model.generate("On", 50, json_schema=json.dumps({"const": 7})).text().strip() == "7"
    date = model.generate("On", 50, regex=r"\d{4}-\d\d").text()
    assert len(date) == 7 and date[4] == "-" and date.replace("-", "").isdigit()
    assert model.generate("On", 50, grammar='start: ("ab")~3').text() == "ababab"
    with pytest.raises(tercet.ModelError, match="JSON schema"):
        model.generate("On", 5, json_schema={"type": "nonsense"}).text()
    with pytest.raises(ValueError, match="not JSON"):
        model.generate("On", 5, json_schema="{")
    with pytest.raises(ValueError, match="exclude"):
        model.generate("On", 5, regex="a", grammar="b")


def test_greedy_text_is_the_arg_max_of_the_logits(model: tercet.LanguageModel) -> None:
    tokens = model.encode("Ownership is")
    text = model.generate("Ownership is", 6)
    text.text()
    assert text.tokens is not None
    for token in text.tokens:
        logits = model.logits(tokens)
        assert logits.shape == (model.vocab,) and logits.dtype == np.float32
        assert int(logits.argmax()) == token
        tokens.append(token)


def test_seeds_decide_what_is_drawn(model: tercet.LanguageModel) -> None:
    def drawn(seed: int) -> str:
        return model.generate("The", 24, temperature=1.0, top_p=0.95, seed=seed).text()

    assert drawn(1) == drawn(1)
    assert len({drawn(seed) for seed in range(4)}) > 1


def test_stop_strings_end_the_text_and_are_no_part_of_it(model: tercet.LanguageModel) -> None:
    whole = model.generate("Ownership is", 40).text()
    stop = whole[20:24]
    text = model.generate("Ownership is", 40, stop=[stop, "never there"])
    assert text.text() == whole[: whole.index(stop)]
    assert text.finish_reason == "stop"


def test_texts_side_by_side_are_those_written_alone(model: tercet.LanguageModel) -> None:
    prompts = ["Ownership is", "A trait", "The compiler"]
    alone = [model.generate(p, 16).text() for p in prompts]
    together = [model.generate(p, 16) for p in prompts]
    pieces = ["", "", ""]
    for _ in range(64):
        for i, text in enumerate(together):
            pieces[i] += next(text, "")
    assert pieces == alone


def test_a_text_can_be_left(model: tercet.LanguageModel) -> None:
    before = threading.active_count()
    text = model.generate("A trait", 200)
    first = next(text)
    text.close()
    assert list(text) == [] and text.finish_reason is None
    assert model.generate("A trait", 200).text().startswith(first)
    assert threading.active_count() == before


def receive_interrupts() -> None:
    """Restores the default action of Ctrl-C, which `nohup` and some CI runners ignore."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize("inherited", [signal.default_int_handler, signal.SIG_IGN])
def test_ctrl_c_ends_a_text(tiny_gguf: Path, inherited: Any) -> None:
    program = textwrap.dedent(
        f"""
        import tercet
        model = tercet.load({str(tiny_gguf)!r}, device="reference")
        try:
            for piece in model.generate("Ownership is", 100000):
                print("piece", flush=True)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        """
    )
    before = signal.signal(signal.SIGINT, inherited)
    try:
        process = subprocess.Popen(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, preexec_fn=receive_interrupts
        )
    finally:
        signal.signal(signal.SIGINT, before)
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "piece\n"
        os.kill(process.pid, signal.SIGINT)
        rest, _ = process.communicate(timeout=60)
    assert rest.endswith("interrupted\n") and process.returncode == 0


@pytest.mark.parametrize(
    ("keywords", "message"),
    [({"temperature": -1.0}, "temperature"), ({"temperature": float("nan")}, "temperature"), ({"top_p": 1.5}, "top_p"),
     ({"min_p": -1.0}, "min_p"), ({"repetition_penalty": 0.0}, "repetition_penalty"), ({"logit_bias": {10**6: 1.0}}, "1000000")],
)
def test_choices_out_of_range(model: tercet.LanguageModel, keywords: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        model.generate("x", 1, **keywords)  # type: ignore[arg-type]


def test_prompts_that_do_not_fit(tiny_gguf: Path) -> None:
    model = tercet.load(tiny_gguf, device="cpu", context=8)
    with pytest.raises(tercet.ModelError, match="context of 8"):
        model.generate("word " * 50, 1).text()
    text = model.generate("Ownership is", 50)
    text.text()
    assert text.finish_reason == "context"
    with pytest.raises(tercet.ModelError, match="token 99999"):
        model.logits([99999])


def test_embeddings_are_those_of_the_reference(minilm: Path) -> None:
    encoder = tercet.load(minilm, device="cpu")
    sentences = json.loads((DATA / "minilm" / "reference.json").read_text())["sentences"]
    want = np.load(DATA / "minilm" / "embeddings_f64.npy")
    got = encoder.embed(sentences, truncate=True)
    assert got.dtype == np.float32 and got.shape == (len(sentences), encoder.width)
    np.testing.assert_allclose(got, want, atol=2e-6)
    assert encoder.embed([]).shape == (0, encoder.width)
    with pytest.raises(tercet.ModelError, match=r"text 2 has \d+ tokens.*truncate=True"):
        encoder.embed(["short", sentences[-1]])


def test_the_five_lines_of_the_readme(minilm: Path, capsys: pytest.CaptureFixture[str]) -> None:
    readme = (DATA.parents[1] / "README.md").read_text()
    lines = readme.split("```python\n")[1].split("```")[0]
    assert len(lines.strip().splitlines()) == 5
    exec(lines.replace("all-MiniLM-L6-v2/", str(minilm)))
    assert 0.0 < float(capsys.readouterr().out) < 1.0


def test_what_cannot_be_loaded(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nothing.gguf"):
        tercet.load(tmp_path / "nothing.gguf")
    (tmp_path / "bad.gguf").write_bytes(b"GGUF" + bytes(40))
    with pytest.raises(tercet.ModelError):
        tercet.load(tmp_path / "bad.gguf")
    (tmp_path / "bad.tercet").write_text("graph { %0 = ")
    with pytest.raises(tercet.TextError, match="line 1"):
        tercet.load(tmp_path / "bad.tercet")
    (tmp_path / "good.tercet").write_text('graph { %x = input{name="x", ty=f32[3]}() return %x as "x" }')
    assert len(tercet.load(tmp_path / "good.tercet")) == 1
    with pytest.raises(ValueError, match="compile"):
        tercet.load(tmp_path / "good.tercet", device="cpu")
