//! Tests that a decode step of attention is fused with its RoPE and cache updates for every order
//! of nodes. The fusion must not happen if another node reads intermediate values.

use tercet_ir::ops::{AttentionLayout, AttentionOptions, ReduceFn, RopeStyle};
use tercet_ir::{CompileOptions, DType, Dim, Graph, OpError, Type, Value};
use tercet_plan::{DeviceCaps, GpuProgram, check_races, compile};

use crate::common::{played, profiles};

const HEADS: usize = 4;
const HEAD: usize = 64;
const KEYS: usize = 512;
const LAYERS: usize = 2;

/// A step before attention.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    QueryNorm,
    KeyNorm,
    QueryRope,
    KeyRope,
    KeyAppend,
    ValueAppend,
}

use Step::{KeyAppend, KeyNorm, KeyRope, QueryNorm, QueryRope, ValueAppend};

/// Deviation from a plain layer that may prevent fusion.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Other {
    Nothing,
    /// An additional node reads the key cache directly after this step of the layer.
    ReadsKeys(Step),
    ReadsValues(Step),
    /// A node reads the queries after RoPE (or the keys, for `ReadsKeyRope`).
    ReadsQueryRope,
    ReadsKeyRope,
    /// The values are computed from the old contents of the key cache.
    ValuesOfKeyCache,
    /// The queries are computed from the old contents of the value cache.
    QueriesOfValueCache,
    /// Keys and values are written to different positions.
    StartsApart,
    /// Queries and keys get different RoPE positions.
    TablesApart,
    /// The number of visible keys is computed from the keys themselves.
    LenOfKeys,
    /// Layers compute in F32; queries, keys and values are cast to the F16 of the caches.
    NarrowCaches,
    /// As `NarrowCaches`, but another node reads the F16 result of the attention.
    ReadsNarrowResult,
    /// As `NarrowCaches`, but another node reads the F16 values.
    ReadsNarrowValues,
}

impl Other {
    fn casts(self) -> bool {
        let casts = [
            Other::NarrowCaches,
            Other::ReadsNarrowResult,
            Other::ReadsNarrowValues,
        ];
        casts.contains(&self)
    }

    /// Float type of the layers.
    fn dtype(self) -> DType {
        if self.casts() { DType::F32 } else { DType::F16 }
    }
}

/// Intermediate values of a layer.
struct Layer {
    q: Value,
    k: Value,
    v: Value,
    caches: [Value; 2],
}

/// Values common to all layers: RoPE tables, start positions of keys and values, number of keys.
struct Shared {
    gain: Value,
    tables: [[Value; 2]; 2],
    starts: [Value; 2],
    len: Value,
}

impl Shared {
    fn of(g: &mut Graph, s: &Dim, other: Other) -> Result<Shared, OpError> {
        let table = |g: &mut Graph, name: &str| {
            g.input(name, Type::new(DType::F32, [s.clone(), (HEAD / 2).into()]))
        };
        let starts = |g: &mut Graph, name: &str| g.input(name, Type::new(DType::I32, [4]));
        let own = [table(g, "cos")?, table(g, "sin")?];
        let at = starts(g, "starts")?;
        Ok(Shared {
            gain: g.param("gain", Type::new(other.dtype(), [HEAD]))?,
            tables: match other == Other::TablesApart {
                true => [own, [own[0], table(g, "sines")?]],
                false => [own; 2],
            },
            starts: match other == Other::StartsApart {
                true => [at, starts(g, "others")?],
                false => [at; 2],
            },
            len: g.input("len", Type::new(DType::I32, [0; 0]))?,
        })
    }
}

/// Adds the nodes of a step to a layer; the results replace the operands in `layer`.
fn step(
    g: &mut Graph,
    with: &Shared,
    layer: &mut Layer,
    step: Step,
    other: Other,
) -> Result<(), OpError> {
    let narrow = |g: &mut Graph, x| match other.casts() {
        true => g.cast(x, DType::F16),
        false => Ok(x),
    };
    let rope = |g: &mut Graph, x, [cos, sin]: [Value; 2]| {
        g.rope(x, cos, sin, RopeStyle::NeoX, HEAD, AttentionLayout::Bshd)
    };
    let append = |g: &mut Graph, cache, new, at| {
        let all = g.dynamic_update_slice(cache, new, at)?;
        g.assign(cache, all)?;
        Ok(all)
    };
    match step {
        QueryNorm => layer.q = g.rms_norm(layer.q, with.gain, None, 1e-6)?,
        KeyNorm => layer.k = g.rms_norm(layer.k, with.gain, None, 1e-6)?,
        QueryRope => {
            let q = rope(g, layer.q, with.tables[0])?;
            layer.q = narrow(g, q)?;
        }
        KeyRope => {
            let k = rope(g, layer.k, with.tables[1])?;
            layer.k = narrow(g, k)?;
        }
        KeyAppend => layer.caches[0] = append(g, layer.caches[0], layer.k, with.starts[0])?,
        ValueAppend => {
            layer.v = narrow(g, layer.v)?;
            layer.caches[1] = append(g, layer.caches[1], layer.v, with.starts[1])?;
        }
    }
    Ok(())
}

/// The value that an additional reader computes after this step: a sum over a cache, or the rows
/// themselves.
fn read(g: &mut Graph, layer: &Layer, other: Other, after: Step) -> Result<Option<Value>, OpError> {
    let sum = |g: &mut Graph, cache| g.reduce(ReduceFn::Sum, cache, &[1], false).map(Some);
    match other {
        Other::ReadsKeys(at) if at == after => sum(g, layer.caches[0]),
        Other::ReadsValues(at) if at == after => sum(g, layer.caches[1]),
        Other::ReadsQueryRope if after == QueryRope => Ok(Some(layer.q)),
        Other::ReadsKeyRope if after == KeyRope => Ok(Some(layer.k)),
        Other::ReadsNarrowValues if after == ValueAppend => Ok(Some(layer.v)),
        Other::Nothing
        | Other::ReadsKeys(_)
        | Other::ReadsValues(_)
        | Other::ReadsQueryRope
        | Other::ReadsKeyRope
        | Other::ValuesOfKeyCache
        | Other::QueriesOfValueCache
        | Other::StartsApart
        | Other::TablesApart
        | Other::LenOfKeys
        | Other::NarrowCaches
        | Other::ReadsNarrowResult
        | Other::ReadsNarrowValues => Ok(None),
    }
}

/// Queries, keys and values as slices of rows, unless `other` takes them from caches.
fn layer_of(g: &mut Graph, heads: Value, at: usize, other: Other) -> Result<Layer, OpError> {
    let cache = |g: &mut Graph, name: &str| {
        let ty = Type::new(DType::F16, [1, KEYS, HEADS, HEAD]);
        g.state(&format!("{name}.{at}"), ty)
    };
    let caches = [cache(g, "keys")?, cache(g, "values")?];
    let part = |g: &mut Graph, i: usize| g.narrow(heads, 2, i * HEADS, HEADS);
    Ok(Layer {
        q: match other == Other::QueriesOfValueCache {
            true => g.narrow(caches[1], 1, 7, 1)?,
            false => part(g, 0)?,
        },
        k: part(g, 1)?,
        v: match other == Other::ValuesOfKeyCache {
            true => g.narrow(caches[0], 1, 7, 1)?,
            false => part(g, 2)?,
        },
        caches,
    })
}

/// A decoder with attention over F16 caches, whose steps before attention are in this order.
fn decoder(s: &Dim, order: &[Step], other: Other) -> Result<Graph, OpError> {
    let mut g = Graph::new();
    let with = Shared::of(&mut g, s, other)?;
    let x = Type::new(other.dtype(), [s.clone(), Dim::Known(3 * HEADS * HEAD)]);
    let mut x = g.input("x", x)?;
    for at in 0..LAYERS {
        let shape = [1.into(), s.clone(), (3 * HEADS).into(), HEAD.into()];
        let heads = g.reshape(x, shape)?;
        let mut layer = layer_of(&mut g, heads, at, other)?;
        for &next in order {
            step(&mut g, &with, &mut layer, next, other)?;
            if let Some(value) = read(&mut g, &layer, other, next)? {
                g.output(&format!("read.{at}"), value)?;
            }
        }
        let [keys, values] = layer.caches;
        let len = match other == Other::LenOfKeys {
            true => {
                let sum = g.reduce(ReduceFn::Sum, keys, &[0, 1, 2, 3], false)?;
                g.cast(sum, DType::I32)?
            }
            false => with.len,
        };
        let options = AttentionOptions::new(HEADS, HEADS, AttentionLayout::Bshd).causal();
        let mut y = g.attention(layer.q, keys, values, options.kv_len(len))?;
        if other == Other::ReadsNarrowResult {
            g.output(&format!("result.{at}"), y)?;
        }
        if other.casts() {
            y = g.cast(y, DType::F32)?;
        }
        let y = g.reshape(y, [s.clone(), (HEADS * HEAD).into()])?;
        x = g.concat(&[y, y, y], 1)?;
    }
    g.output("x", x)?;
    Ok(g)
}

fn planned(caps: &DeviceCaps, s: &Dim, order: &[Step], other: Other) -> GpuProgram {
    let graph = decoder(s, order, other).expect("a graph");
    let options = CompileOptions::new().bound("s", 64);
    let program = compile(&graph, &options, caps).expect("the graph is supported");
    check_races(&program).unwrap_or_else(|race| panic!("{order:?} {other:?}: {race}\n{program}"));
    program
}

/// How many dispatches a run with `tokens` tokens has of `attention_token`, of `rope_append`, and
/// of kernels that do only a part of `rope_append`.
fn counts(program: &GpuProgram, tokens: usize) -> [usize; 3] {
    let names = played(program, tokens);
    let count = |of: &[&str]| names.iter().filter(|n| of.contains(&n.as_str())).count();
    let parts = [
        "rope",
        "rope_update",
        "dynamic_update",
        "dynamic_update_copy",
    ];
    [
        count(&["attention_token"]),
        count(&["rope_append"]),
        count(&parts),
    ]
}

/// All valid orders of the steps before attention, with and without norms.
fn orders() -> Vec<Vec<Step>> {
    let mut all = Vec::new();
    for with in [[false, false], [true, false], [false, true], [true, true]] {
        let norms = [QueryNorm, KeyNorm].into_iter().zip(with);
        let norms = norms
            .filter(|(_, is_there)| *is_there)
            .map(|(norm, _)| norm);
        let steps = [QueryRope, KeyRope, KeyAppend, ValueAppend];
        let steps: Vec<Step> = norms.chain(steps).collect();
        extend(&mut Vec::new(), &steps, &mut all);
    }
    all
}

fn extend(done: &mut Vec<Step>, steps: &[Step], all: &mut Vec<Vec<Step>>) {
    if done.len() == steps.len() {
        all.push(done.clone());
        return;
    }
    for &next in steps {
        let first = match next {
            QueryNorm | KeyNorm | ValueAppend => None,
            QueryRope => Some(QueryNorm),
            KeyRope => Some(KeyNorm),
            KeyAppend => Some(KeyRope),
        };
        let is_ready = first.is_none_or(|f| done.contains(&f) || !steps.contains(&f));
        if is_ready && !done.contains(&next) {
            done.push(next);
            extend(done, steps, all);
            done.pop();
        }
    }
}

#[test]
fn every_order_reaches_the_kernel_of_one_token() {
    let orders = orders();
    // The four kinds of layers have 12, 30, 20 and 60 valid orders: the permutations that keep the
    // order of dependent steps.
    assert_eq!(orders.len(), 12 + 30 + 20 + 60);
    for order in &orders {
        let program = planned(&DeviceCaps::h200(), &Dim::sym("s"), order, Other::Nothing);
        let one = [LAYERS, 0, 0];
        assert_eq!(counts(&program, 1), one, "{order:?}\n{program}");
        let many = [0, LAYERS, 0];
        assert_eq!(counts(&program, 5), many, "{order:?}\n{program}");
    }
}

#[test]
fn casts_to_the_dtype_of_the_caches_are_part_of_the_step() {
    let steps = |order: &[Step], other, tokens| {
        let program = planned(&DeviceCaps::h200(), &Dim::sym("s"), order, other);
        let casts = |name: &&String| name.starts_with("map") || name.contains("cast");
        let names = played(&program, tokens);
        let parts = counts(&program, tokens);
        (parts, names.iter().filter(casts).count(), names.len())
    };
    for order in orders() {
        let norms = order
            .iter()
            .filter(|step| [QueryNorm, KeyNorm].contains(step));
        let norms = LAYERS * norms.count();
        let (parts, casts, all) = steps(&order, Other::NarrowCaches, 1);
        assert_eq!((parts, casts), ([LAYERS, 0, 0], 0), "{order:?}");
        // A concat of the results follows each layer.
        assert!(all <= 2 * LAYERS + norms + 1, "{order:?}: {all}");
        let (parts, casts, _) = steps(&order, Other::NarrowCaches, 5);
        assert_eq!((parts, casts), ([0, LAYERS, 0], 0), "{order:?}");
    }
    // A result or values that are read in F16 are stored in F16, too.
    let (parts, casts, _) = steps(KEYS_FIRST, Other::ReadsNarrowResult, 1);
    assert_eq!((parts, casts), ([LAYERS, 0, 0], LAYERS));
    let (parts, ..) = steps(KEYS_FIRST, Other::ReadsNarrowValues, 1);
    assert_eq!(parts[..2], [0, 0]);
}

#[test]
fn every_order_of_a_single_token_is_one_step() {
    for order in orders() {
        let program = planned(&DeviceCaps::h200(), &1.into(), &order, Other::Nothing);
        let one = [LAYERS, 0, 0];
        assert_eq!(counts(&program, 1), one, "{order:?}\n{program}");
    }
}

#[test]
fn every_profile_plans_every_order_alike() {
    for (profile, caps) in profiles() {
        let mut found: Vec<[usize; 3]> = orders()
            .iter()
            .map(|order| counts(&planned(&caps, &Dim::sym("s"), order, Other::Nothing), 1))
            .collect();
        found.dedup();
        assert_eq!(found.len(), 1, "{profile}: {found:?}");
    }
}

/// Orders of a model with norms, of one without norms, and of one that appends values first.
const KEYS_FIRST: &[Step] = &[
    QueryNorm,
    QueryRope,
    KeyNorm,
    KeyRope,
    KeyAppend,
    ValueAppend,
];
const WITHOUT_NORMS: &[Step] = &[QueryRope, KeyRope, KeyAppend, ValueAppend];
const VALUES_FIRST: &[Step] = &[ValueAppend, KeyRope, QueryRope, KeyAppend];

/// Kernel counts per layer for one token: fused attention, fused RoPE and append, separate parts.
fn one_token(order: &[Step], other: Other) -> [usize; 3] {
    let program = planned(&DeviceCaps::h200(), &1.into(), order, other);
    counts(&program, 1).map(|n| n / LAYERS)
}

#[test]
fn what_something_else_reads_in_between_is_there() {
    let apart = [0, 0, 3];
    let appended = [0, 1, 0];
    // If another node reads a cache between the two appends, it sees new keys with old values, so
    // the appends cannot be fused into one step. If it reads before or after both, they are fused.
    let of_keys = Other::ReadsKeys(KeyAppend);
    assert_eq!(one_token(KEYS_FIRST, of_keys), apart);
    assert_eq!(one_token(VALUES_FIRST, of_keys), appended);
    let of_both = Other::ReadsValues(ValueAppend);
    assert_eq!(one_token(KEYS_FIRST, of_both), appended);
    assert_eq!(one_token(VALUES_FIRST, of_both), apart);
    // A check that depends on new keys runs before any state is written, so caches are copied.
    assert_eq!(one_token(KEYS_FIRST, Other::LenOfKeys), [0, 0, 4]);
    // The append kernel writes the queries for another reader. If another node reads the keys after
    // RoPE, a separate step computes this RoPE.
    assert_eq!(one_token(KEYS_FIRST, Other::ReadsQueryRope), appended);
    assert_eq!(one_token(KEYS_FIRST, Other::ReadsKeyRope), [0, 0, 4]);
}

#[test]
fn what_is_read_of_caches_before_they_change_is_no_obstacle() {
    let token = [1, 0, 0];
    assert_eq!(one_token(KEYS_FIRST, Other::ReadsKeys(KeyRope)), token);
    assert_eq!(one_token(KEYS_FIRST, Other::ReadsValues(KeyAppend)), token);
    assert_eq!(
        one_token(VALUES_FIRST, Other::ReadsKeys(ValueAppend)),
        token
    );
}

#[test]
fn operands_that_lie_in_caches_are_read_before_these_change() {
    for (order, other) in [
        (VALUES_FIRST, Other::ValuesOfKeyCache),
        // The old keys are read after the update, which requires a copy.
        (KEYS_FIRST, Other::ValuesOfKeyCache),
        (WITHOUT_NORMS, Other::QueriesOfValueCache),
    ] {
        let [token, append, _] = one_token(order, other);
        assert_eq!([token, append], [0, 0], "{order:?} {other:?}");
    }
    // The norm writes the queries to a new slot.
    let [token, ..] = one_token(KEYS_FIRST, Other::QueriesOfValueCache);
    assert_eq!(token, 1);
}

#[test]
fn keys_that_are_not_like_their_queries_or_values_stay_apart() {
    for other in [Other::StartsApart, Other::TablesApart] {
        for order in [KEYS_FIRST, VALUES_FIRST] {
            assert_eq!(one_token(order, other), [0, 0, 3], "{order:?} {other:?}");
        }
    }
}

/// A graph with one query per head, and separate positions for each head.
fn positions_by_head() -> Result<Graph, OpError> {
    let mut g = Graph::new();
    let heads =
        |g: &mut Graph, name: &str| g.input(name, Type::new(DType::F16, [1, HEADS, 1, HEAD]));
    let (q, k, v) = (
        heads(&mut g, "q")?,
        heads(&mut g, "k")?,
        heads(&mut g, "v")?,
    );
    let table = g.input("table", Type::new(DType::F32, [HEADS, HEAD / 2]))?;
    let at = g.input("at", Type::new(DType::I32, [4]))?;
    let len = g.input("len", Type::new(DType::I32, [0; 0]))?;
    let rope = |g: &mut Graph, x| {
        g.rope(
            x,
            table,
            table,
            RopeStyle::NeoX,
            HEAD,
            AttentionLayout::Bshd,
        )
    };
    let (q, k) = (rope(&mut g, q)?, rope(&mut g, k)?);
    let mut caches = Vec::new();
    for (name, new) in [("keys", k), ("values", v)] {
        let cache = g.state(name, Type::new(DType::F16, [1, HEADS, KEYS, HEAD]))?;
        let all = g.dynamic_update_slice(cache, new, at)?;
        g.assign(cache, all)?;
        caches.push(all);
    }
    let options = AttentionOptions::new(HEADS, HEADS, AttentionLayout::Bhsd).causal();
    let y = g.attention(q, caches[0], caches[1], options.kv_len(len))?;
    g.output("y", y)?;
    Ok(g)
}

#[test]
fn positions_by_head_are_not_those_of_one_token() {
    let graph = positions_by_head().expect("a graph");
    let program = compile(&graph, &CompileOptions::new(), &DeviceCaps::h200()).expect("supported");
    check_races(&program).unwrap_or_else(|race| panic!("{race}\n{program}"));
    assert_eq!(counts(&program, 1), [0, 1, 0], "{program}");
}
