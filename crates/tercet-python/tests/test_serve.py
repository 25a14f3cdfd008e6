"""`tercet serve` with common clients: `openai` and `tritonclient` (Open Inference Protocol)."""

import base64
import json
import os
import re
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import tritonclient.http  # type: ignore[import-untyped]

import tercet

GRAPH = """graph {
  %x = input{name="x", ty=f32[rows, 3]}()
  %y = softmax{axis=1}(%x)
  return %y as "y"
}"""


@pytest.fixture(scope="module")
def adapter(tiny_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapters")
    (folder / "texts.txt").write_text("Every answer is 42, and nothing else is.\n\n" * 40)
    trainer = tercet.train(tiny_gguf, folder / "texts.txt", lora=2, steps=4, batch=2, seq=32, lr=0.05, device="cpu")
    list(trainer)
    trainer.write(folder / "adapter")
    return folder / "adapter"


@pytest.fixture(scope="module")
def address(tiny_gguf: Path, minilm: Path, adapter: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    command = os.environ.get("TERCET_COMMAND")
    assert command, "TERCET_COMMAND is not set; `cargo xtask python` sets it"
    graph = tmp_path_factory.mktemp("graphs") / "rows.tercet"
    graph.write_text(GRAPH)
    models = [argument for path in (tiny_gguf, minilm, graph) for argument in ("-m", str(path))]
    lora = ["--lora", f"{tiny_gguf.stem}:tuned={adapter}"]
    arguments = [command, "serve", "--port", "0", "--device", "cpu", "-b", "rows=16", *lora, *models]
    with subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        said = server.stderr.readline()
        found = re.search(r"http://[\d.:]+", said)
        assert found, said
        yield found.group()
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0


@pytest.fixture(scope="module")
def client(address: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_completions_are_those_of_the_module(client: openai.OpenAI, tiny_gguf: Path) -> None:
    model = tercet.load(tiny_gguf, device="cpu")
    name = tiny_gguf.stem
    assert name in {m.id for m in client.models.list()}
    want = model.generate("Ownership is", 24).text()
    done = client.completions.create(model=name, prompt="Ownership is", max_tokens=24, temperature=0)
    assert done.choices[0].text == want and done.choices[0].finish_reason == "length"
    assert done.usage is not None and done.usage.completion_tokens == 24
    stream = client.completions.create(model=name, prompt="Ownership is", max_tokens=24, temperature=0, stream=True)
    assert "".join(part.choices[0].text for part in stream) == want


def test_conversations(client: openai.OpenAI, tiny_gguf: Path) -> None:
    messages: Any = [{"role": "user", "content": "What is a trait?"}]
    ask: Any = {"model": tiny_gguf.stem, "messages": messages, "max_tokens": 12, "temperature": 0.7, "seed": 3}
    done = client.chat.completions.create(**ask)
    stream = client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True})
    parts = list(stream)
    text = "".join(p.choices[0].delta.content or "" for p in parts if p.choices)
    assert text == done.choices[0].message.content
    assert parts[-1].usage == done.usage


def test_embeddings(client: openai.OpenAI, minilm: Path) -> None:
    texts = ["first", "a second text"]
    want = tercet.load(minilm, device="cpu").embed(texts)
    encoding: Any
    for encoding in ("float", "base64"):
        got = client.embeddings.create(model=minilm.name, input=texts, encoding_format=encoding)
        rows = [np.array(row.embedding, np.float32) if encoding == "float" else decoded(row.embedding) for row in got.data]
        np.testing.assert_array_equal(np.stack(rows), want)
    by_default = client.embeddings.create(model=minilm.name, input=texts[0])
    np.testing.assert_allclose(by_default.data[0].embedding, want[0], atol=1e-6)


def decoded(text: Any) -> np.ndarray[Any, Any]:
    return np.frombuffer(base64.b64decode(text), np.float32)


def test_errors_have_their_classes(client: openai.OpenAI, tiny_gguf: Path) -> None:
    with pytest.raises(openai.NotFoundError, match="unknown model"):
        client.completions.create(model="gpt-none", prompt="x")
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.completions.create(model=tiny_gguf.stem, prompt="x", temperature=-1)
    repeated = client.completions.create(model=tiny_gguf.stem, prompt="x", max_tokens=1, echo=True)
    assert repeated.choices[0].text.startswith("x")
    tools: Any = [{"type": "function", "function": {"name": "now"}}]
    messages: Any = [{"role": "user", "content": "x"}]
    other: Any = {"type": "function", "function": {"name": "then"}}
    with pytest.raises(openai.BadRequestError, match="not among `tools`"):
        client.chat.completions.create(model=tiny_gguf.stem, messages=messages, tools=tools, tool_choice=other)
    # The template has no tools; a documented prompt describes them.
    answer = client.chat.completions.create(model=tiny_gguf.stem, messages=messages, tools=tools, max_tokens=4)
    assert answer.usage and answer.usage.prompt_tokens > 20


def test_several_texts_with_their_probabilities(client: openai.OpenAI, tiny_gguf: Path) -> None:
    ask: Any = {"model": tiny_gguf.stem, "prompt": ["A trait", "The"], "n": 2, "max_tokens": 5, "seed": 1, "logprobs": 2}
    done = client.completions.create(**ask)
    assert [choice.index for choice in done.choices] == [0, 1, 2, 3]
    for choice in done.choices:
        told = choice.logprobs
        assert told is not None and told.tokens is not None and told.token_logprobs is not None
        assert "".join(told.tokens) == choice.text
        assert all(log is not None and log <= 0 for log in told.token_logprobs)
    messages: Any = [{"role": "user", "content": "Why?"}]
    answer = client.chat.completions.create(
        model=tiny_gguf.stem, messages=messages, max_tokens=4, temperature=0, logprobs=True, top_logprobs=3
    )
    content = answer.choices[0].logprobs and answer.choices[0].logprobs.content
    assert content and all(len(token.top_logprobs) == 3 for token in content)
    assert all(token.logprob == token.top_logprobs[0].logprob for token in content)


def test_a_request_takes_the_adapter_that_it_names(client: openai.OpenAI, tiny_gguf: Path) -> None:
    base, tuned = tiny_gguf.stem, f"{tiny_gguf.stem}:tuned"
    assert tuned in {m.id for m in client.models.list()}

    def text(model: str) -> str:
        done = client.completions.create(model=model, prompt="Every answer", max_tokens=12, temperature=0)
        assert done.model == model
        return done.choices[0].text

    plain = text(base)
    assert text(tuned) != plain == text(base)
    with pytest.raises(openai.NotFoundError, match="unknown model"):
        text(f"{tiny_gguf.stem}:other")


def test_triton_client(address: str) -> None:
    x = np.random.default_rng(7).normal(size=(4, 3)).astype(np.float32)
    want = tercet.Graph(GRAPH).compile("cpu", {"rows": 16})(x=x)["y"]
    with tritonclient.http.InferenceServerClient(address.removeprefix("http://")) as client:
        assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("rows")
        assert client.get_model_metadata("rows")["inputs"][0]["shape"] == [-1, 3]
        for binary in (True, False):
            given = tritonclient.http.InferInput("x", [4, 3], "FP32")
            given.set_data_from_numpy(x, binary_data=binary)
            asked = tritonclient.http.InferRequestedOutput("y", binary_data=binary)
            result = client.infer("rows", [given], outputs=[asked], request_id="7")
            assert result.get_response()["id"] == "7"
            np.testing.assert_allclose(result.as_numpy("y"), want, rtol=0 if binary else 1e-6)
        with pytest.raises(tritonclient.utils.InferenceServerException, match="unknown model"):
            client.infer("nothing", [given])


def test_graphs_with_binary_tensors(address: str) -> None:
    x = np.random.default_rng(5).normal(size=(4, 3)).astype("<f4")
    described: Any = {
        "inputs": [{"name": "x", "shape": [4, 3], "datatype": "FP32", "parameters": {"binary_data_size": x.nbytes}}],
        "outputs": [{"name": "y", "parameters": {"binary_data": True}}],
    }
    head = json.dumps(described).encode()
    headers = {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": str(len(head))}
    request = urllib.request.Request(f"{address}/v2/models/rows/infer", head + x.tobytes(), headers)
    with urllib.request.urlopen(request) as response:
        length = int(response.headers["Inference-Header-Content-Length"])
        body = response.read()
    assert json.loads(body[:length])["outputs"][0]["shape"] == [4, 3]
    y = np.frombuffer(body[length:], "<f4").reshape(4, 3)
    want = tercet.Graph(GRAPH).compile("cpu", {"rows": 16})(x=x)["y"]
    np.testing.assert_array_equal(y, want)
