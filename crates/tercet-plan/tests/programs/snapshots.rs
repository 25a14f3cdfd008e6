//! Program of a small decoder layer on each profile. Changes of these snapshots change what users
//! run and need review like code.

use tercet_ir::{CompileOptions, DType, Dim, Graph, OpError, Type};
use tercet_plan::compile;

use crate::common::profiles;

/// A feed-forward block with a residual, over a symbolic number of rows.
fn block(dtype: DType) -> Result<Graph, OpError> {
    let mut g = Graph::new();
    let x = g.input("x", Type::new(dtype, [Dim::sym("s"), Dim::Known(64)]))?;
    let gamma = g.param("gamma", Type::new(dtype, [64]))?;
    let up = g.param("up", Type::new(dtype, [64, 128]))?;
    let down = g.param("down", Type::new(dtype, [128, 64]))?;
    let h = g.rms_norm(x, gamma, None, 1e-5)?;
    let h = g.matmul(h, up)?;
    let h = g.silu(h)?;
    let h = g.matmul(h, down)?;
    let y = g.plus(h, x)?;
    let y = g.softmax(y, 1)?;
    g.output("y", y)?;
    Ok(g)
}

#[test]
fn a_block_on_each_profile() {
    for (profile, caps) in profiles() {
        for dtype in [DType::F32, DType::F16] {
            let g = block(dtype).expect("the block is well typed");
            let options = CompileOptions::new().bound("s", 256);
            let program = compile(&g, &options, &caps).expect("the block is supported");
            insta::assert_snapshot!(format!("block_{profile}_{dtype}"), program.to_string());
        }
    }
}
