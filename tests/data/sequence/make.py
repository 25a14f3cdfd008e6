"""Writes `fixtures.txt`: operators of sequences and spectra by plain loops, apart from the project's own.

python3 tests/data/sequence/make.py > tests/data/sequence/fixtures.txt

A fixture is `== NAME`, a graph in the text form with `{input}` leaves of f64, then for each input
`-- NAME` and its numbers, and for each output `-> NAME` and its numbers.
"""

import cmath
import math
import random

random.seed(20261122)


def numbers(n, low=-1.0, high=1.0):
    return [random.uniform(low, high) for _ in range(n)]


def show(name, node, inputs, outputs):
    """`inputs` are (name, shape, values), `outputs` (name, values) in the order of the ports."""
    print(f"== {name}")
    print("graph {")
    for leaf, shape, _ in inputs:
        print(f'  %{leaf} = input{{name="{leaf}", ty=f64{shape}}}()')
    operands = ", ".join(f"%{leaf}" for leaf, _, _ in inputs)
    print(f"  %y = {node}({operands})")
    ports = ["%y" if i == 0 else f"%y.{i}" for i in range(len(outputs))]
    results = (f'{port} as "{out}"' for port, (out, _) in zip(ports, outputs))
    print(f"  return {', '.join(results)}")
    print("}")
    for leaf, _, values in inputs:
        print(f"-- {leaf}")
        print(" ".join(repr(float(v)) for v in values))
    for out, values in outputs:
        print(f"-> {out}")
        print(" ".join(repr(float(v)) for v in values))


def dft(x, sign):
    n = len(x)
    return [sum(v * cmath.exp(sign * 2j * cmath.pi * (j * k % n) / n) for j, v in enumerate(x)) for k in range(n)]


def flat(x):
    return [part for v in x for part in (v.real, v.imag)]


def complexes(x):
    return [complex(re, im) for re, im in zip(x[::2], x[1::2])]


def spectra():
    for n in (1, 8, 12, 13, 30):
        x = numbers(2 * n)
        forward = dft(complexes(x), -1)
        show(f"fft of {n}", "fft{inverse=false, norm=backward}", [("x", [n, 2], x)], [("y", flat(forward))])
        back = [v / math.sqrt(n) for v in dft(complexes(x), 1)]
        show(f"inverse fft of {n}", "fft{inverse=true, norm=ortho}", [("x", [n, 2], x)], [("y", flat(back))])
    for n in (9, 10):
        x = numbers(n)
        y = dft([complex(v, 0) for v in x], -1)[: n // 2 + 1]
        show(f"rfft of {n}", "rfft{norm=backward}", [("x", [n], x)], [("y", flat(y))])
        show(f"irfft of {n}", f"irfft{{n={n}, norm=backward}}", [("x", [n // 2 + 1, 2], flat(y))], [("y", x)])
    x, window = numbers(23), numbers(8)
    frames = []
    for start in range(0, 23 - 8 + 1, 5):
        frame = [complex(x[start + i] * window[i], 0) for i in range(8)]
        frames += flat(dft(frame, -1)[:5])
    show("stft", "stft{n=8, hop=5}", [("x", [23], x), ("window", [8], window)], [("y", frames)])
    n, segments, k = 10, 3, 4
    x = numbers(2 * n * segments)
    rows = [complexes(x[2 * n * i : 2 * n * (i + 1)]) for i in range(segments)]
    power = []
    for b in range(n // 2 + 1):
        factor = 1 if b in (0, n // 2) else 2
        power.append(factor * sum(abs(row[b]) ** 2 for row in rows) / segments)
    best = sorted(range(len(power)), key=lambda b: -power[b])[:k]
    outputs = [("bins", best), ("powers", [power[b] for b in best])]
    show("welch_peaks", f"welch_peaks{{k={k}, segments={segments}}}", [("x", [segments, n, 2], x)], outputs)
    x, filters = numbers(2 * 7, 0, 2), numbers(7 * 3, 0, 1)
    y = []
    for f in range(2):
        mel = [sum(x[f * 7 + b] * filters[b * 3 + m] for b in range(7)) for m in range(3)]
        log = [math.log10(max(v, 1e-10)) for v in mel]
        y += [(max(v, max(log) - 8) + 4) / 4 for v in log]
    show("log_mel", "log_mel", [("x", [2, 7], x), ("filters", [7, 3], filters)], [("y", y)])


def scans():
    steps, channels, n = 6, 3, 4
    x, delta = numbers(steps * channels), numbers(steps * channels, 0, 1)
    a, b, c = numbers(channels * n, -2, 0), numbers(steps * n), numbers(steps * n)
    h = [[0.0] * n for _ in range(channels)]
    y = []
    for t in range(steps):
        for ch in range(channels):
            d = delta[t * channels + ch]
            for s in range(n):
                h[ch][s] = math.exp(d * a[ch * n + s]) * h[ch][s] + d * b[t * n + s] * x[t * channels + ch]
            y.append(sum(c[t * n + s] * h[ch][s] for s in range(n)))
    inputs = [("x", [1, steps, channels], x), ("delta", [1, steps, channels], delta), ("a", [channels, n], a)]
    inputs += [("b", [1, steps, n], b), ("c", [1, steps, n], c)]
    show("selective_scan", f"selective_scan{{n={n}, carry=false}}", inputs, [("y", y)])

    heads, p, groups = 4, 2, 2
    x, dt, a = numbers(steps * heads * p), numbers(steps * heads, 0, 1), numbers(heads, -2, 0)
    b, c = numbers(steps * groups * n), numbers(steps * groups * n)
    state = {}
    y = []
    for t in range(steps):
        for head in range(heads):
            g = head // (heads // groups)
            d = dt[t * heads + head]
            for i in range(p):
                for s in range(n):
                    old = state.get((head, i, s), 0.0)
                    inner = d * x[(t * heads + head) * p + i] * b[(t * groups + g) * n + s]
                    state[head, i, s] = math.exp(d * a[head]) * old + inner
                y.append(sum(c[(t * groups + g) * n + s] * state[head, i, s] for s in range(n)))
    inputs = [("x", [1, steps, heads, p], x), ("dt", [1, steps, heads], dt), ("a", [heads], a)]
    inputs += [("b", [1, steps, groups, n], b), ("c", [1, steps, groups, n], c)]
    show("mamba2", "mamba2{carry=false}", inputs, [("y", y)])

    heads, n, p = 2, 3, 4
    q, k, v = numbers(steps * heads * n), numbers(steps * heads * n), numbers(steps * heads * p)
    g, beta, first = numbers(steps * heads, -1, 0), numbers(steps * heads, 0, 1), numbers(heads * n * p)
    state = list(first)
    o = []
    for t in range(steps):
        for head in range(heads):
            token = t * heads + head
            at = lambda i, j: (head * n + i) * p + j
            for i in range(n):
                for j in range(p):
                    state[at(i, j)] *= math.exp(g[token])
            for j in range(p):
                answer = sum(state[at(i, j)] * k[token * n + i] for i in range(n))
                d = beta[token] * (v[token * p + j] - answer)
                for i in range(n):
                    state[at(i, j)] += k[token * n + i] * d
            for j in range(p):
                o.append(sum(state[at(i, j)] * q[token * n + i] for i in range(n)) / math.sqrt(n))
    inputs = [("q", [1, steps, heads, n], q), ("k", [1, steps, heads, n], k), ("v", [1, steps, heads, p], v)]
    inputs += [("g", [1, steps, heads], g), ("beta", [1, steps, heads], beta), ("state", [1, heads, n, p], first)]
    show("gated_delta_net", "gated_delta_net{carry=true}", inputs, [("o", o), ("last", state)])


def sigmoid(v):
    return 1 / (1 + math.exp(-v))


def cell(kind, x, h, hidden, memory):
    """One step of a row; x and h are what each gate gets of input and state."""
    size = len(hidden)
    gate = lambda values, i: values[i * size : (i + 1) * size]
    if kind == "lstm":
        i, f, g, o = ([a + b for a, b in zip(gate(x, j), gate(h, j))] for j in range(4))
        memory = [sigmoid(f[u]) * memory[u] + sigmoid(i[u]) * math.tanh(g[u]) for u in range(size)]
        return [sigmoid(o[u]) * math.tanh(memory[u]) for u in range(size)], memory
    if kind == "gru":
        r = [sigmoid(a + b) for a, b in zip(gate(x, 0), gate(h, 0))]
        z = [sigmoid(a + b) for a, b in zip(gate(x, 1), gate(h, 1))]
        n = [math.tanh(gate(x, 2)[u] + r[u] * gate(h, 2)[u]) for u in range(size)]
        return [(1 - z[u]) * n[u] + z[u] * hidden[u] for u in range(size)], memory
    f = math.tanh if kind == "tanh" else lambda v: max(v, 0.0)
    return [f(a + b) for a, b in zip(x, h)], memory


def product(row, w, wide):
    return [sum(v * w[i * wide + j] for i, v in enumerate(row)) for j in range(wide)]


def networks():
    batch, steps, width, size, layers, ways = 2, 4, 3, 2, 2, 2
    for kind, gates in (("lstm", 4), ("gru", 3), ("tanh", 1), ("relu", 1)):
        wide = gates * size
        x = numbers(batch * steps * width)
        h0, c0 = numbers(layers * ways * batch * size), numbers(layers * ways * batch * size)
        inputs = [("x", [batch, steps, width], x), ("h0", [layers * ways, batch, size], h0)]
        if kind == "lstm":
            inputs.append(("c0", [layers * ways, batch, size], c0))
        rows = [[x[(b * steps + t) * width :][:width] for t in range(steps)] for b in range(batch)]
        last_h, last_c = [], []
        for layer in range(layers):
            new = [[[] for _ in range(steps)] for _ in range(batch)]
            for way in range(ways):
                at = layer * ways + way
                inner = len(rows[0][0])
                w_x, w_h, bias = numbers(inner * wide), numbers(size * wide), numbers(2 * wide)
                inputs.append((f"w_x{at}", [inner, wide], w_x))
                inputs.append((f"w_h{at}", [size, wide], w_h))
                inputs.append((f"bias{at}", [2, wide], bias))
                for b in range(batch):
                    hidden = h0[(at * batch + b) * size :][:size]
                    memory = c0[(at * batch + b) * size :][:size]
                    for t in range(steps) if way == 0 else reversed(range(steps)):
                        of_x = [v + o for v, o in zip(product(rows[b][t], w_x, wide), bias[:wide])]
                        of_h = [v + o for v, o in zip(product(hidden, w_h, wide), bias[wide:])]
                        hidden, memory = cell(kind, of_x, of_h, hidden, memory)
                        new[b][t] = new[b][t] + hidden
                    last_h += hidden
                    last_c += memory
            rows = new
        y = [v for row in rows for step in row for v in step]
        outputs = [("y", y), ("h", last_h)] + ([("c", last_c)] if kind == "lstm" else [])
        attrs = f"layers={layers}, bidirectional=true"
        name, attrs = (kind, attrs) if kind in ("lstm", "gru") else ("rnn", f"{attrs}, f={kind}")
        show(f"{name} of {kind}", f"{name}{{{attrs}}}", inputs, outputs)


spectra()
scans()
networks()
