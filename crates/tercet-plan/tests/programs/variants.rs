//! Which variant of a kernel is taken, why, and what a table of measurements changes.

use tercet_ir::{CompileOptions, DType, Graph, OpError, Scheme, Type};
use tercet_plan::{Caps, Entry, Key, Program, Tuning, Weights, compile, explain};

const SIZES: [usize; 3] = [8, 14336, 4096];

/// Eight rows times packed weights.
fn few_rows() -> Result<Graph, OpError> {
    let [m, n, k] = SIZES;
    let bytes = Scheme::Q4K.row_bytes(k).expect("whole blocks");
    let mut g = Graph::new();
    let x = g.input("x", Type::new(DType::F32, [m, k]))?;
    let w = g.param("w", Type::new(DType::U8, [n, bytes]))?;
    let y = g.dequant_matmul(x, w, Scheme::Q4K)?;
    g.output("y", y)?;
    Ok(g)
}

fn planned(caps: &Caps) -> Program {
    let graph = few_rows().expect("a graph");
    compile(&graph, &CompileOptions::new(), caps).expect("the graph is supported")
}

fn taken(program: &Program) -> (&str, bool) {
    let [taken] = &program.variants[..] else {
        panic!("{:?}", program.variants);
    };
    (taken.variant.0, taken.measured)
}

#[test]
fn the_cheapest_variant_is_taken_and_says_why() {
    let program = planned(&Caps::h200());
    assert_eq!(taken(&program), ("few_rows_streamed", false));
    let listing = explain(&program, "vulkan").listing;
    let line = listing.lines().last().expect("a line");
    let head = "      1 x dequant_mat_mul        few_rows_streamed (cost ";
    assert!(line.starts_with(head), "{line}");
    for why in [
        "; few_rows_held ",
        "; row_held needs one row",
        "; rows_quads ",
    ] {
        assert!(line.contains(why), "{line}");
    }
    // Elsewhere the same weights go another way.
    let program = planned(&Caps::laptop());
    assert_eq!(taken(&program), ("rows_quads", false));
    let listing = explain(&program, "vulkan").listing;
    assert!(
        listing.contains("few_rows_held needs 2 to 8 rows"),
        "{listing}"
    );
}

#[test]
fn a_measurement_goes_before_costs_where_it_applies() {
    let named = |key: Key, variant: &str| {
        let variant = variant.to_string();
        let caps = Caps::h200().tuned(Tuning::new(vec![Entry { key, variant }]));
        planned(&caps)
    };
    let key = |sizes| Key::rows(DType::F32, Weights::Packed(Scheme::Q4K), sizes);
    let near = key([6, 14000, 5000]);
    let held = named(near.clone(), "few_rows_held");
    assert_eq!(taken(&held), ("few_rows_held", true));
    assert!(held.kernels[0].name.starts_with("few_rows_q4_k"), "{held}");
    assert!(
        explain(&held, "vulkan")
            .listing
            .contains("few_rows_held (measured, cost")
    );
    // What it cannot run, what there is not, what is far away, and what is computed otherwise.
    let other = Key::rows(DType::F16, Weights::Packed(Scheme::Q4K), SIZES);
    for (key, variant) in [
        (near.clone(), "row_held"),
        (near, "no such variant"),
        (key([8, 2048, 2048]), "few_rows_held"),
        (other, "few_rows_held"),
    ] {
        let program = named(key, variant);
        assert_eq!(taken(&program), ("few_rows_streamed", false), "{variant}");
    }
}
