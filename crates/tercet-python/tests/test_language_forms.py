"""Prompts, messages, texts and options in the forms in which people pass them."""

import asyncio
import base64
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tercet
from conftest import DATA

TOOL = {
    "name": "add", "description": "Adds numbers.",
    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
}  # fmt: skip
TEMPLATE = (
    "{% if tools %}<tools>{% for tool in tools %}{{ tool | tojson }}{% endfor %}</tools>{% endif %}"
    "{% for m in messages %}[{{ m.role }}{% if m.name %} {{ m.name }}{% endif %}]{{ m.content }}"
    "{% for call in m.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


@pytest.fixture(scope="module")
def model(tiny_gguf: Path) -> tercet.LanguageModel:
    return tercet.load(tiny_gguf, kind="language", device="cpu")


@pytest.fixture(scope="module")
def caller(tmp_path_factory: pytest.TempPathFactory) -> tercet.LanguageModel:
    """A model whose template shows every field of messages and tools."""
    folder = tmp_path_factory.mktemp("caller") / "model"
    shutil.copytree(DATA / "tiny-rust-llama", folder, ignore=shutil.ignore_patterns("*.gguf"))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return tercet.load(folder, kind="language", device="cpu")


def test_prompts_are_texts_or_tokens(model: tercet.LanguageModel) -> None:
    want = model.generate("Ownership is", 8).text()
    ids = model.encode("Ownership is")
    prompts: list[Any] = [ids, tuple(ids), np.array(ids), np.array(ids, np.uint16), iter(ids), [np.int64(i) for i in ids]]
    for prompt in prompts:
        assert model.generate(prompt, 8).text() == want
    assert model.generate("Ownership is", np.int64(8)).text() == want
    assert len(model.generate("Ownership is", None, regex="a{9}").text()) == 9
    refused: list[tuple[Any, type[Exception], str]] = [
        ([10**6], tercet.ModelError, "token 1000000"), ([-1], tercet.ModelError, "token -1"), ([0.5], TypeError, "prompt"),
        (None, TypeError, "prompt"), (["a text"], TypeError, "prompt"), (b"bytes", TypeError, "prompt"),
    ]  # fmt: skip
    unset: dict[str, Any] = dict.fromkeys(["temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty"])
    assert model.generate("Ownership is", 8, **unset, frequency_penalty=None, logit_bias=None).text() == want
    for prompt, error, message in refused:
        with pytest.raises(error, match=message):
            model.generate(prompt, 1)
    with pytest.raises(tercet.ModelError):
        model.generate([], 1).text()


def test_stop_is_a_text_or_several(model: tercet.LanguageModel) -> None:
    whole = model.generate("Ownership is", 40).text()
    cut = whole[20:24]
    want = whole[: whole.index(cut)]
    for stop in (cut, [cut], (cut, "never there"), iter([cut]), np.array([cut])):
        assert model.generate("Ownership is", 40, stop=stop).text() == want
    assert model.generate("Ownership is", 40, stop=None).text() == whole
    assert "\n" not in model.generate("fn main", 40, stop="\n").text()
    with pytest.raises(TypeError, match=r"stop\[1\]"):
        model.generate("x", 1, stop=["a", 1])  # type: ignore[list-item]


def test_tokens_and_texts_in_any_number(model: tercet.LanguageModel) -> None:
    ids = model.encode("fn main")
    assert model.encode(["fn main", "x"]) == [ids, model.encode("x")]
    assert model.encode([]) == [] and model.encode(("fn main",), special=False) == [model.encode("fn main", False)]
    text = model.decode(ids)
    for tokens in (ids, tuple(ids), np.array(ids), np.array(ids, np.int32), iter(ids)):
        assert model.decode(tokens) == text
    assert model.decode([ids, ids[:1]]) == [text, model.decode(ids[:1])]
    assert model.decode(np.array([ids, ids])) == [text, text]
    assert model.decode(ids[0]) == model.decode([ids[0]]) == model.decode(np.int64(ids[0]))
    assert model.decode([]) == ""
    with pytest.raises(TypeError, match="tokens"):
        model.decode("text")  # type: ignore[arg-type]


def test_logits_of_prompts_and_of_generated_tokens(model: tercet.LanguageModel) -> None:
    ids = model.encode("Ownership is")
    every = model.logits(ids, all=True)
    assert every.shape == (len(ids), model.vocab) and every.dtype == np.float32
    np.testing.assert_allclose(every[-1], model.logits(np.array(ids)), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(every[1], model.logits(ids[:2]), rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(model.logits("Ownership is"), model.logits(ids))
    text = model.generate(ids, 6, logits=True)
    assert text.logits is None
    text.text()
    assert text.tokens is not None and text.logits is not None
    assert text.logits.shape == (6, model.vocab) and text.logits.argmax(1).tolist() == text.tokens
    np.testing.assert_allclose(text.logits[0], every[-1], rtol=1e-4, atol=1e-4)
    again = model.generate(ids, 6)
    again.text()
    assert again.logits is None and again.tokens == text.tokens
    none = model.generate(ids, 0, logits=True)
    none.text()
    assert none.logits is not None and none.logits.shape == (0, model.vocab)


def test_conversations_in_all_forms(model: tercet.LanguageModel) -> None:
    want = model.chat([{"role": "user", "content": "hi"}], 8).text()
    parts = [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]

    class Message:
        def model_dump(self) -> dict[str, Any]:
            return {"role": "user", "content": "hi", "refusal": None, "audio": None, "annotations": []}

    forms: list[Any] = [
        "hi", {"role": "user", "content": "hi"}, ({"role": "user", "content": "hi"},),
        [{"role": "user", "content": parts}], [{"role": "user", "content": ["hi"]}],
        [{"role": "user", "content": "hi", "name": None}], [Message()], iter([Message()]),
    ]  # fmt: skip
    for messages in forms:
        assert model.chat(messages, 8).text() == want
    refused: list[tuple[Any, type[Exception], str]] = [
        ("", ValueError, "nothing"), ([1], TypeError, "message 0"), (7, TypeError, "iter"),
        ([{"content": "x"}], ValueError, "role"), ([{"role": "user", "content": 5}], TypeError, "content"),
        ([{"role": "user", "content": [{"type": "video"}]}], ValueError, "video"),
        ([{"role": "user", "content": [{"type": "text"}]}], ValueError, "text"),
        ([{"role": "user", "content": "x", "nam": "n"}], ValueError, "nam"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x.png"}}]}], OSError, "x.png"),
    ]  # fmt: skip
    for messages, error, message in refused[1:]:
        with pytest.raises((error, tercet.ModelError), match=message):
            model.chat(messages, 1)
    picture = str(DATA / "vision" / "pictures" / "palette.png")
    with pytest.raises(tercet.ModelError, match="images"):
        model.chat([{"role": "user", "content": [{"type": "image", "image": picture}]}], 1)


def test_tools(caller: tercet.LanguageModel, model: tercet.LanguageModel) -> None:
    call = r'<tool_call>\{"name": "add", "arguments": \{"a": 12\}\}</tool_call>'
    found: dict[str, Any] = {}
    forms: list[list[Any]] = [[TOOL], [{"type": "function", "function": TOOL}]]
    for tools in forms:
        answer = caller.chat("What is 12?", tools=tools, regex=call, tool_choice="auto")
        assert answer.tool_calls is None
        answer.text()
        assert answer.tool_calls is not None
        [found] = answer.tool_calls
        assert found["type"] == "function" and found["id"]
        assert found["function"]["name"] == "add" and json.loads(found["function"]["arguments"]) == {"a": 12}
    # The call and its result are messages of the next turn.
    turn = [
        {"role": "user", "content": "What is 12?"}, {"role": "assistant", "content": None, "tool_calls": [found]},
        {"role": "tool", "tool_call_id": found["id"], "name": "add", "content": "12"},
    ]  # fmt: skip
    shown = '[user]What is 12?[assistant]<tool_call>{"name": "add", "arguments": {"a": 12}}</tool_call>[tool add]12[assistant]'
    assert caller.chat(turn, 6).text() == caller.generate(caller.encode(shown, special=False), 6).text()
    plain = caller.chat("x", 6)
    plain.text()
    assert plain.tool_calls == []
    assert caller.chat("x", 6, tools=[TOOL], tool_choice="none").text() == caller.chat("x", 6).text()
    refused: list[tuple[list[Any], str]] = [([{"type": "function"}], "name"), ([{"function": {}}], "name")]
    for tools, message in refused:
        with pytest.raises(ValueError, match=message):
            caller.chat("x", tools=tools)
    with pytest.raises(ValueError, match="required"):
        caller.chat("x", tools=[TOOL], tool_choice="required")
    # A template without tools: a system prompt shows them.
    told = model.chat("x", 100, tools=[TOOL], regex=call)
    told.text()
    assert told.tool_calls is not None and told.tool_calls[0]["function"]["name"] == "add"


def test_thoughts_and_calls_of_answers(caller: tercet.LanguageModel) -> None:
    call = r'<think>A \{"name": "add"\}</think> Well:<tool_call>\{"name": "add", "arguments": \{"a": 12\}\}</tool_call>'
    answer = caller.chat("What is 12?", tools=[TOOL], regex=call)
    assert answer.reasoning is None and answer.content is None
    whole = answer.text()
    assert whole.startswith("<think>")
    assert answer.reasoning == 'A {"name": "add"}' and answer.content == "Well:"
    assert answer.tool_calls is not None and len(answer.tool_calls) == 1
    other = caller.chat("What is 12?", regex=call)
    other.text()
    assert other.tool_calls == [] and other.content is not None and "<tool_call>" in other.content


def test_pictures_in_conversations() -> None:
    folder = DATA / "vision-language" / "smolvlm-b"
    model = tercet.load(folder, kind="language", device="cpu")
    assert model.has_vision and "has_vision" in model._repr_html_()
    path = DATA / "vision" / "pictures" / "palette.png"
    data = path.read_bytes()
    [want] = [run for run in json.loads((folder / "reference.json").read_text())["prompts"] if run["chat"]]
    url = "data:image/png;base64," + base64.b64encode(data).decode()

    def answer(**part: Any) -> list[int]:
        content = [part, {"type": "text", "text": want["chat"]}]
        text = model.chat([{"role": "user", "content": content}], 8)
        text.text()
        assert text.tokens
        return text.tokens

    tokens = answer(type="image", image=path)
    assert tokens == want["greedy"][: len(tokens)]
    parts: list[dict[str, Any]] = [
        {"type": "image", "path": str(path)}, {"type": "image", "image": data},
        {"type": "image_url", "image_url": {"url": url}}, {"type": "input_image", "image_url": url},
        {"type": "image_url", "image_url": {"url": path.as_uri()}},
    ]  # fmt: skip
    for part in parts:
        assert answer(**part) == tokens
    black = answer(type="image", image=np.zeros((20, 30, 3), np.uint8))
    assert black == answer(type="image", image=np.zeros((30, 20, 3), np.uint8).transpose(1, 0, 2))
    plain = model.chat("What is this?", 4, logits=True)
    plain.text()
    assert plain.logits is not None and plain.logits.argmax(1).tolist() == plain.tokens
    for wrong, message in [
        (np.zeros((4, 4), np.uint8), "height, width, 3"), ("https://example.com/a.png", "downloaded"),
        ("data:image/png,x", "base64"), (b"no picture", "image"),
    ]:  # fmt: skip
        with pytest.raises((ValueError, tercet.TercetError), match=message):
            model.chat([{"role": "user", "content": [{"type": "image", "image": wrong}]}])


def test_adapters_by_request(tiny_gguf: Path, tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("Every answer is 42, and nothing else is.\n\n" * 40)
    trainer = tercet.train(tiny_gguf, tmp_path / "texts.txt", lora=2, steps=4, batch=2, seq=32, lr=0.05, device="cpu")
    list(trainer)
    for out in (tmp_path / "adapter", tmp_path / "adapter.gguf"):
        trainer.write(out)
    model = tercet.load(tiny_gguf, kind="language", device="cpu", adapters={"tuned": tmp_path / "adapter"})
    assert model.adapters == ["tuned"]
    base = model.generate("Every answer", 12).text()
    tuned = model.generate("Every answer", 12, adapter="tuned").text()
    assert tuned != base
    assert model.generate("Every answer", 12, adapter=tmp_path / "adapter.gguf").text() == tuned
    assert model.generate("Every answer", 12).text() == base
    assert model.chat("hi", 8, adapter="tuned").text() != model.chat("hi", 8).text()
    assert not np.array_equal(model.logits("hi", adapter="tuned"), model.logits("hi"))
    with pytest.raises(tercet.ModelError, match="nothing.*tuned"):
        model.generate("x", 1, adapter="nothing").text()
    with pytest.raises(ValueError, match="adapters"):
        tercet.load(DATA / "encoders" / "sentence-a", adapters={"a": tmp_path})


def test_one_text_gives_one_result() -> None:
    encoder = tercet.load(DATA / "encoders" / "sentence-a", kind="encoder", device="cpu")
    both = encoder.embed(["one text", "another"])
    one = encoder.embed("one text")
    assert one.shape == (encoder.width,)
    np.testing.assert_allclose(one, both[0], atol=1e-5)
    for texts in (("one text", "another"), np.array(["one text", "another"]), iter(["one text", "another"])):
        np.testing.assert_allclose(encoder.embed(texts), both, atol=1e-5)
    np.testing.assert_array_equal(encoder.encode(["one text"]), encoder.embed(["one text"]))
    assert encoder.embed([]).shape == (0, encoder.width)
    for wrong in (5, [1], b"bytes", [None], {"a": 1}):
        with pytest.raises(TypeError, match="texts"):
            encoder.embed(wrong)  # type: ignore[arg-type]
    folder = DATA / "encoders" / "reranker-a"
    ranker = tercet.load(folder, kind="classifier", device="cpu")
    assert ranker.classify("a cat") == ranker.classify(["a cat"])[0]
    assert ranker.rerank("q", "a text") == ranker.rerank("q", ["a text"])
    assert ranker.rerank("q", (text for text in ["a", "b"])) == ranker.rerank("q", ["a", "b"])
    assert tercet.load(folder, kind="encoder", device="cpu").embed("a cat").ndim == 1


def test_kinds_are_stated(tiny_gguf: Path, tmp_path: Path) -> None:
    with pytest.raises(tercet.ModelError, match="`language`.*`encoder`"):
        tercet.load(tiny_gguf, kind="encoder", device="cpu")
    with pytest.raises(tercet.ModelError, match="onnx"):
        tercet.load(tiny_gguf, kind="onnx")
    with pytest.raises(ValueError, match="kind is `model`"):
        tercet.load(tiny_gguf, kind="model")  # type: ignore[call-overload]
    (tmp_path / "g.tercet").write_text('graph { %x = input{name="x", ty=f32[3]}() return %x as "x" }')
    assert tercet.load(tmp_path / "g.tercet", kind="graph").inputs == [("x", "f32[3]")]
    with pytest.raises(tercet.ModelError, match="graph"):
        tercet.load(tmp_path / "g.tercet", kind="language")
    assert tercet.load(tiny_gguf, kind="language", device="cpu", dtype=np.float32).vocab > 0


def test_seeds_are_drawn(model: tercet.LanguageModel, tiny_gguf: Path, tmp_path: Path) -> None:
    seeds = {model.generate("x", 1, seed=None).seed for _ in range(4)}
    assert len(seeds) == 4
    assert model.chat("x", 1, seed=np.int64(7)).seed == 7
    g = tercet.Graph()
    g.output("y", g.op("rng_uniform", shape=[4], dtype="f32", lo=0.0, hi=1.0, seed=1))
    session = g.compile("cpu")
    seed = session.set_seed(None)
    first = session()["y"]
    session.reset()
    assert session.set_seed(seed) == seed
    np.testing.assert_array_equal(session()["y"], first)
    assert session.set_seed() != seed
    (tmp_path / "texts.txt").write_text("One and two.\n\n" * 40)
    trainers = [tercet.train(tiny_gguf, tmp_path / "texts.txt", lora=1, steps=1, batch=1, seq=32, seed=None, device="cpu") for _ in range(2)]
    assert trainers[0].seed != trainers[1].seed
    recognizer = tercet.load(DATA / "speech" / "whisper-b", kind="speech", device="cpu")
    assert isinstance(recognizer.transcribe(np.zeros(16000, np.float32), seed=None).text(), str)


def test_results_are_async_iterators(model: tercet.LanguageModel, tiny_gguf: Path, tmp_path: Path) -> None:
    want = [list(model.generate(prompt, 12)) for prompt in ("Ownership is", "A trait")]
    order: list[int] = []

    async def pieces(at: int, prompt: str) -> list[str]:
        found = []
        async for piece in model.generate(prompt, 12):
            order.append(at)
            found.append(piece)
        return found

    async def all_of() -> list[list[str]]:
        found = list(await asyncio.gather(pieces(0, "Ownership is"), pieces(1, "A trait")))
        text = model.generate("Ownership is", 12)
        assert await text.atext() == "".join(want[0]) and text.finish_reason == "length"
        assert [piece async for piece in text] == []
        left = model.generate("A trait", 200)
        assert await anext(left) == want[1][0]
        await left.aclose()
        assert [piece async for piece in left] == []
        with pytest.raises(tercet.ModelError, match="context"):
            async for _ in model.generate("word " * 3000, 1):
                pass
        recognizer = tercet.load(DATA / "speech" / "whisper-b", kind="speech", device="cpu")
        heard = [segment.text async for segment in recognizer.transcribe(np.zeros(16000, np.float32))]
        assert heard == [segment.text for segment in recognizer.transcribe(np.zeros(16000, np.float32))]
        (tmp_path / "texts.txt").write_text("One and two.\n\n" * 40)
        trainer = tercet.train(tiny_gguf, tmp_path / "texts.txt", lora=1, steps=2, batch=1, seq=32, device="cpu")
        assert len([loss async for loss in trainer]) == 2
        return found

    assert asyncio.run(all_of()) == want
    assert len(set(order[:-1])) == 2
    with model.generate("A trait", 200) as text:
        next(text)
    assert list(text) == []


def test_everything_has_two_representations(model: tercet.LanguageModel, tmp_path: Path) -> None:
    g = tercet.Graph()
    x = g.input("<x>", "f32[2]")
    g.output("y", x.exp())
    text = model.generate("x <b>", 4)
    text.text()
    encoder = tercet.load(DATA / "encoders" / "sentence-a", device="cpu")
    classifier = tercet.load(DATA / "encoders" / "reranker-a", device="cpu")
    recognizer = tercet.load(DATA / "speech" / "whisper-b", device="cpu")
    heard = recognizer.transcribe(DATA / "speech" / "speech.flac", language="de", timestamps=True)
    [segment, *_] = list(heard)
    onnx = tercet.load(DATA / "onnx-microsoft" / "fused_mat_mul" / "model.onnx", device="cpu")
    session = g.compile("cpu")
    objects: list[Any] = [
        g, x, g.exp, session, g.explain("cpu"), g.verify({"<x>": [0, 0]}, "cpu"), g.trace({"<x>": [0, 0]}, "cpu"),
        model, text, encoder, classifier, recognizer, heard, segment, onnx, onnx.get_inputs()[0], onnx.get_modelmeta(),
        onnx.io_binding(), tercet.DeviceTensor([1, 2], "cpu"),
    ]  # fmt: skip
    for thing in objects:
        assert repr(thing).startswith(("<tercet.", "<tercet ")) and "object at" not in repr(thing)
        html = thing._repr_html_()
        assert html.startswith("<") and "<x>" not in html and "<b>" not in html, thing
    assert "agrees" in repr(objects[5]) and "4 tokens" in repr(text) and "1." in repr(heard) + "1."


def test_variables_of_the_chat_template(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(DATA / "tiny-rust-llama", folder, ignore=shutil.ignore_patterns("*.gguf"))
    template = (
        "{% for m in messages %}{{ m.content }}{% endfor %}[{{ reasoning_effort }}{{ more }}"
        "{{ 'off' if enable_thinking is false }}]"
    )
    (folder / "chat_template.jinja").write_text(template)
    model = tercet.load(folder, kind="language", device="cpu")
    cases: list[tuple[dict[str, Any], str]] = [
        ({}, "x[]"), ({"enable_thinking": False}, "x[off]"), ({"reasoning_effort": "none"}, "x[noneoff]"),
        ({"reasoning_effort": "high", "chat_template_kwargs": {"more": "+"}}, "x[high+]"),
    ]  # fmt: skip
    for given, shown in cases:
        assert model.chat("x", 6, **given).text() == model.generate(model.encode(shown, special=False), 6).text()
    with pytest.raises(TypeError):
        model.chat("x", 6, chat_template_kwargs={"more": {1}})
