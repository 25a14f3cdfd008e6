// Recurrent cells, selected by CELL: new states from gate inputs.
// uses prelude.wgsl: fmax
// uses scalar/gate.wgsl: f_sigmoid
// uses scalar/hyperbolic.wgsl: f_tanh

override CELL: u32 = 0u;

const LSTM: u32 = 0u;
const GRU: u32 = 1u;
const TANH: u32 = 2u;
const RELU: u32 = 3u;
const GATES: u32 = select(select(1u, 3u, CELL == GRU), 4u, CELL == LSTM);

// Next h and c of an element. `x` contains the gate inputs of the input, `of_state` those of the
// previous state.
fn next_state(x: vec4<f32>, of_state: vec4<f32>, hidden: f32, cell: f32) -> vec2<f32> {
    let both = x + of_state;
    if CELL == LSTM {
        let c = f_sigmoid(both.y) * cell + f_sigmoid(both.x) * f_tanh(both.z);
        return vec2<f32>(f_sigmoid(both.w) * f_tanh(c), c);
    }
    if CELL == GRU {
        let fresh = f_tanh(x.z + f_sigmoid(both.x) * of_state.z);
        let stays = f_sigmoid(both.y);
        return vec2<f32>((1.0 - stays) * fresh + stays * hidden, 0.0);
    }
    if CELL == TANH {
        return vec2<f32>(f_tanh(both.x), 0.0);
    }
    return vec2<f32>(fmax(both.x, 0.0), 0.0);
}
