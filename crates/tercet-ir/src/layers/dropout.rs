//! Dropout.

use tercet_tensor::DType;

use crate::error::{OpError, TypeError};
use crate::graph::{Graph, Value};

impl Graph {
    /// Dropout (Srivastava and others, "Dropout", 2014): each element of a float `x` is zero with
    /// probability `p`, else `x / (1 - p)`.
    ///
    /// The mask is drawn at each run, and the same seed and run give the same mask on every
    /// executor ([`Graph::rng_uniform`]). With `p = 0` the result is `x` itself and no node is
    /// added, as evaluation needs. Gradients draw the same numbers again, so no mask is stored.
    ///
    /// # Errors
    /// [`OpError`] if `p` is not in `0 <= p < 1`, or `x` is not a float.
    pub fn dropout(&mut self, x: Value, p: f64, seed: u64) -> Result<Value, OpError> {
        let ty = self.get_type(x).cloned();
        let refused = |source| OpError {
            op: "dropout",
            operands: ty.iter().cloned().collect(),
            source,
        };
        if !(0.0..1.0).contains(&p) {
            let reason = format!("{p}; expected 0 or more and less than 1");
            return Err(refused(TypeError::Attr { name: "p", reason }));
        }
        let Some(own) = &ty else {
            let reason = "the operand is not in this graph".to_string();
            return Err(refused(TypeError::Other(reason)));
        };
        if !own.dtype.is_float() {
            return Err(refused(TypeError::DType {
                operand: "x",
                found: own.dtype,
                accepted: "floats".to_string(),
            }));
        }
        if p == 0.0 {
            return Ok(x);
        }
        // The mask uses the sign of the random number, which rounding to a narrow dtype does not
        // change.
        let drawn = self.rng_uniform(own.shape.clone(), DType::F32, -p, 1.0 - p, seed)?;
        let zero = self.scalar(DType::F32, 0.0)?;
        let dropped = self.lt(drawn, zero)?;
        let scale = self.scalar(own.dtype, 1.0 / (1.0 - p))?;
        let scaled = self.mul(x, scale)?;
        let nothing = self.scalar(own.dtype, 0.0)?;
        self.where_(dropped, nothing, scaled)
    }
}
