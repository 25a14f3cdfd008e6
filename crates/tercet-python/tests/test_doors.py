"""Chat, classification, reranking, speech, traces and training."""

import json
import math
import struct
import zlib
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


def test_a_conversation_is_written_by_the_template(model: tercet.LanguageModel) -> None:
    messages = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "What is a trait?"}]
    answer = model.chat(messages, 12)
    pieces = list(answer)
    assert answer.tokens is not None and len(answer.tokens) <= 12
    # The model has no chat template, so ChatML is used.
    turns = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|endoftext|>\n" for m in messages)
    prompt = model.decode(model.encode("")) + turns + "<|im_start|>assistant\n"
    assert model.generate(prompt, 12).text() == "".join(pieces)
    assert model.chat(messages, 12, temperature=1.0, seed=5).text() == model.chat(messages, 12, temperature=1.0, seed=5).text()
    assert model.chat(messages, regex="yes|no").text() in ("yes", "no")


def test_conversations_that_are_refused(model: tercet.LanguageModel) -> None:
    cases: list[tuple[list[dict[str, str]], str]] = [
        ([], "list of messages is empty"),
        ([{"role": "user"}], "content"),
        ([{"role": "wizard", "content": "x"}], "wizard"),
        ([{"role": "user", "content": "x", "nickname": "n"}], "nickname"),
    ]
    for messages, named in cases:
        with pytest.raises(ValueError, match=named):
            model.chat(messages)
    with pytest.raises(tercet.ModelError, match="context"):
        model.chat([{"role": "user", "content": "word " * 2000}]).text()


def test_special_tokens_in_messages_are_text(model: tercet.LanguageModel) -> None:
    end = model.encode("<|endoftext|>", special=False)
    assert len(end) == 1
    said = [{"role": "user", "content": "a <|endoftext|> b"}]
    plain = model.chat([{"role": "user", "content": "a b"}], 6).text()
    assert isinstance(model.chat(said, 6).text(), str) and isinstance(plain, str)


def test_samplers_stops_and_seeds(model: tercet.LanguageModel) -> None:
    def tokens(**options: Any) -> list[int]:
        text = model.generate("fn main", 24, **options)
        text.text()
        assert text.tokens is not None
        return text.tokens

    greedy = tokens()
    assert tokens(samplers="temperature;top_k", top_k=-1) == greedy
    # Only the most likely token remains.
    for only in [{"typical_p": 0.0, "top_k": 1}, {"top_n_sigma": 1e-9}, {"mirostat": 2, "mirostat_tau": 0.0}]:
        assert tokens(temperature=1.0, **only) == greedy
    assert tokens(dry_multiplier=5.0, dry_allowed_length=1) != greedy or len(set(greedy)) == len(greedy)
    assert tokens(stop_token_ids=[greedy[2]]) == greedy[: greedy.index(greedy[2])]
    with pytest.raises(TypeError, match="beam"):
        model.generate("fn", beam=3)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="top_q"):
        model.generate("fn", samplers=["top_q"])
    with pytest.raises(ValueError, match="vocabulary"):
        model.generate("fn", stop_token_ids=[10**6])
    one, other = (model.generate("fn", 8, temperature=2.0) for _ in range(2))
    assert one.seed != other.seed
    assert model.generate("fn", 8, temperature=2.0, seed=one.seed).text() == one.text()
    assert model.generate("fn", 1, seed=-1).seed != 0


def test_documents_are_ranked() -> None:
    folder = DATA / "encoders" / "reranker-a"
    ranker = tercet.load(folder, device="cpu")
    assert isinstance(ranker, tercet.Classifier)
    reference = json.loads((folder / "sentences.json").read_text())
    texts, case = reference["texts"], reference["cases"][0]
    ranked = ranker.rerank(case["query"], texts)
    assert sorted(at for at, _ in ranked) == list(range(len(texts)))
    assert [score for _, score in ranked] == sorted((score for _, score in ranked), reverse=True)
    np.testing.assert_allclose([dict(ranked)[i] for i in range(len(texts))], case["want"], atol=1e-4)
    assert ranker.rerank(case["query"], texts, top_n=1) == ranked[:1]
    assert ranker.labels == ["LABEL_0"]
    scores = ranker.classify(["a cat", "the dog"])
    assert [list(row) for row in scores] == [["LABEL_0"]] * 2
    with pytest.raises(tercet.ModelError, match="classify"):
        ranker.classify_tokens(["a"])
    with pytest.raises(tercet.ModelError, match="token"):
        ranker.rerank("q", ["word " * 5000])
    assert len(ranker.rerank("q", ["word " * 5000], truncate=True)) == 1
    assert isinstance(tercet.load(DATA / "encoders" / "sentence-a", device="cpu"), tercet.Encoder)


@pytest.fixture(scope="module")
def recognizer() -> tercet.Recognizer:
    loaded = tercet.load(DATA / "speech" / "whisper-b", device="cpu")
    assert isinstance(loaded, tercet.Recognizer)
    return loaded


def test_speech_is_an_iterator_of_segments(recognizer: tercet.Recognizer) -> None:
    audio = DATA / "speech" / "speech.flac"
    heard = recognizer.transcribe(audio, language="de", timestamps=True)
    assert heard.language is None and heard.srt is None
    segments = list(heard)
    assert segments and all(s.end >= s.start and s.tokens for s in segments)
    assert heard.language == "de" and heard.duration is not None and heard.duration > 1
    assert heard.vtt is not None and heard.vtt.startswith("WEBVTT")
    assert list(heard) == []
    again = recognizer.transcribe(audio.read_bytes(), language="de", timestamps=True)
    assert again.text() == "".join(s.text for s in segments)
    reference = json.loads((DATA / "speech" / "whisper-b" / "reference.json").read_text())
    options = {"language": "de", "task": "translate"}
    [want] = [run for run in reference["runs"] if run["options"] == options]
    translated = recognizer.transcribe(str(audio), language="de", task="translate", fallback=False)
    assert translated.text().strip() == want["text"].strip()


def test_speech_that_is_refused(recognizer: tercet.Recognizer, tmp_path: Path) -> None:
    silence = np.zeros(16000, np.float32)
    recognizer.transcribe(silence).text()
    left = recognizer.transcribe(silence)
    left.close()
    assert list(left) == []
    with pytest.raises(tercet.ModelError, match="xx"):
        recognizer.transcribe(silence, language="xx").text()
    with pytest.raises(ValueError, match="sing"):
        recognizer.transcribe(silence, task="sing")
    with pytest.raises(tercet.TensorError, match="one axis"):
        recognizer.transcribe(np.zeros((2, 5), np.float32))
    with pytest.raises(tercet.ModelError, match="no samples"):
        recognizer.transcribe(np.zeros(0, np.float32)).text()
    with pytest.raises(tercet.ModelError, match="audio"):
        recognizer.transcribe(b"no audio").text()
    with pytest.raises(tercet.ModelError, match="nothing.wav"):
        recognizer.transcribe(tmp_path / "nothing.wav").text()
    with pytest.raises(ValueError, match="context"):
        tercet.load(DATA / "speech" / "whisper-b", device="cpu", context=5)


def test_a_run_is_traced(tmp_path: Path) -> None:
    g = tercet.Graph()
    x = g.input("x", "f32[rows, 64]")
    w = g.param("w", "f32[64, 64]")
    g.output("y", (x @ w).softmax(axis=1))
    tensors = {"x": np.ones((8, 64), np.float32), "w": np.eye(64, dtype=np.float32)}
    trace = g.trace(tensors, "cpu", runs=3)
    assert len(trace.runs) == 3 and all(took > 0 for took in trace.runs)
    assert trace.steps and all(took >= 0 for *_, took in trace.steps)
    path = tmp_path / "trace.json"
    trace.save(path)
    events = json.loads(path.read_text())["traceEvents"]
    assert len(events) == 2 + 3 + len(trace.steps)
    with pytest.raises(tercet.DeviceError):
        g.trace(tensors, "nowhere")
    for gpu in [name for name, _, usable in tercet.devices() if usable and name in ("vulkan", "wgpu")]:
        steps = g.trace(tensors, gpu, runs=2).steps
        assert {run for run, *_ in steps} == {0, 1}
        assert all(kernel and took >= 0 for _, _, kernel, _, took in steps)


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    path = tmp_path / "texts.jsonl"
    lines = [json.dumps({"text": f"The answer to question {i} is always the same: {i % 3}."}) for i in range(24)]
    path.write_text("\n".join(lines))
    return path


def test_a_model_is_trained_step_by_step(tiny_gguf: Path, texts: Path, tmp_path: Path) -> None:
    def trainer(steps: int = 6) -> tercet.Trainer:
        return tercet.train(
            tiny_gguf, texts, lora=2, steps=steps, batch=2, seq=32, lr=5e-3, held_out=0.2, seed=3, device="cpu"
        )

    whole = trainer()
    before = whole.evaluate()
    losses = list(whole)
    after = whole.evaluate()
    assert len(losses) == 6 and whole.steps == whole.total == 6
    assert before is not None and after is not None and after < before
    assert all(math.isfinite(loss) for loss in losses)

    # Notebook representation.
    html = whole._repr_html_()
    assert html.count(",") == 7 and f"loss {losses[-1]:.4f} after step 6 of 6" in html
    assert "0 of" in trainer()._repr_html_()

    # A resumed run gives the same bits as an uninterrupted one.
    first = trainer()
    assert [first.step() for _ in range(3)] == losses[:3]
    first.save(tmp_path / "checkpoint.safetensors")
    second = trainer()
    assert second.resume(tmp_path / "checkpoint.safetensors") == 3
    assert list(second) == losses[3:]
    name = whole.weights[0]
    np.testing.assert_array_equal(second.weight(name), whole.weight(name))

    whole.write(tmp_path / "adapter")
    assert (tmp_path / "adapter" / "adapter_config.json").exists()
    whole.write(tmp_path / "adapter.gguf")
    assert (tmp_path / "adapter.gguf").stat().st_size > 1000


def test_trainings_that_are_refused(tiny_gguf: Path, texts: Path, tmp_path: Path) -> None:
    def train(**more: float) -> tercet.Trainer:
        return tercet.train(tiny_gguf, texts, seq=32, device="cpu", **more)  # type: ignore[arg-type]

    for name, value in [("lora", 0), ("steps", 0), ("batch", 0), ("lr", math.nan), ("held_out", 1.0), ("clip", 0)]:
        with pytest.raises(ValueError, match=name):
            train(**{name: value})
    with pytest.raises(ValueError, match="dtype"):
        tercet.train(tiny_gguf, texts, dtype="i32", device="cpu")
    with pytest.raises(FileNotFoundError):
        tercet.train(tiny_gguf, tmp_path / "nothing.txt")
    with pytest.raises(tercet.ModelError, match="language models"):
        tercet.train(DATA / "encoders" / "sentence-a", texts, device="cpu")
    one = train(lora=1, batch=1, steps=2)
    with pytest.raises(FileNotFoundError):
        one.resume(tmp_path / "nothing")
    (tmp_path / "bad").write_bytes(b"nothing")
    with pytest.raises(tercet.TrainError, match="bad"):
        one.resume(tmp_path / "bad")
    one.step()
    one.save(tmp_path / "one")
    with pytest.raises(ValueError, match="batch"):
        train(lora=1, batch=2, steps=2).resume(tmp_path / "one")


def test_scenes_are_drawn(tmp_path: Path) -> None:
    names = "x y z f_dc_0 f_dc_1 f_dc_2 opacity scale_0 scale_1 scale_2 rot_0 rot_1 rot_2 rot_3".split()
    rng = np.random.default_rng(1)
    rows = np.zeros((200, len(names)), "<f4")
    rows[:, :6] = rng.normal(size=(200, 6))
    rows[:, 6:] = [3.0, -2.0, -2.0, -2.0, 1.0, 0.0, 0.0, 0.0]
    head = "".join(f"property float {name}\n" for name in names)
    path = tmp_path / "scene.ply"
    path.write_bytes(f"ply\nformat binary_little_endian 1.0\nelement vertex 200\n{head}end_header\n".encode() + rows.tobytes())
    scene = tercet.load(path, device="cpu")
    assert len(scene) == 200
    picture = scene.render((64, 48))
    assert picture.array.shape == (48, 64, 3) and picture.array.dtype == np.uint8
    assert picture.array.max() > 50
    png = picture._repr_png_()
    assert png.startswith(b"\x89PNG") and png == picture.png()
    size, rows_of_image = struct.unpack(">II", png[16:24]), zlib.decompress(idat(png))
    assert size == (64, 48) and len(rows_of_image) == 48 * (1 + 64 * 3)
    same = scene.render((64, 48), eye=(0, 0, -9), target=(0, 0, 0))
    np.testing.assert_array_equal(same.array, scene.render((64, 48), eye=(0, 0, -9), target=(0, 0, 0)).array)
    away = scene.render((32, 32), eye=(0, 0, -9), target=(0, 0, -20), background=(1, 0, 0))
    assert (away.array == [255, 0, 0]).all()
    with pytest.raises(ValueError, match="together"):
        scene.render(eye=(0, 0, -9))
    with pytest.raises(ValueError, match="background"):
        scene.render(background=(2, 0, 0))
    with pytest.raises(tercet.ModelError, match="eye and target are the same point"):
        scene.render(eye=(0, 0, 0), target=(0, 0, 0))
    nothing = scene.render((0, 10))
    assert nothing.array.shape == (10, 0, 3)
    with pytest.raises(tercet.TensorError, match="Zero width"):
        nothing.png()
    with pytest.raises(ValueError, match="dtype"):
        tercet.load(path, dtype="f16")


def idat(png: bytes) -> bytes:
    """The compressed rows of a PNG file."""
    parts, at = [], 8
    while at < len(png):
        (length,) = struct.unpack(">I", png[at : at + 4])
        if png[at + 4 : at + 8] == b"IDAT":
            parts.append(png[at + 8 : at + 8 + length])
        at += 12 + length
    return b"".join(parts)
