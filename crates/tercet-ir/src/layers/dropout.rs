//! Dropout.

use crate::dtype::DType;
use crate::error::{OpError, TypeError};
use crate::graph::{Graph, Value};

impl Graph {
    /// Each element of `x`, a float, is zero with probability `p`, else `x / (1 - p)` (Srivastava and others, "Dropout", 2014).
    ///
    /// What is dropped is drawn at each run, for the seed and the run alike everywhere ([`Graph::rng_uniform`]). With `p = 0` it is
    /// `x` itself, and no node is added: that is what evaluation wants. Gradients draw the same numbers again, so that none
    /// are kept for them.
    ///
    /// # Errors
    /// [`OpError`] for a `p` that is not 0 or more and less than 1, and for what is no float.
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
            let reason = "the operand is not of this graph".to_string();
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
        // By the sign, which stays where these numbers are rounded to a narrow dtype.
        let drawn = self.rng_uniform(own.shape.clone(), DType::F32, -p, 1.0 - p, seed)?;
        let zero = self.scalar(DType::F32, 0.0)?;
        let dropped = self.lt(drawn, zero)?;
        let scale = self.scalar(own.dtype, 1.0 / (1.0 - p))?;
        let scaled = self.mul(x, scale)?;
        let nothing = self.scalar(own.dtype, 0.0)?;
        self.where_(dropped, nothing, scaled)
    }
}
