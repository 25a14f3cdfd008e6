//! A graph with a branch, a loop and a state. Its control flow depends on values that are read back
//! during a run.

use tercet::{
    CompileOptions, DType, Device, Executable, Graph, OpError, OutputSelection, Tensor, Type, Value,
};

use crate::Failure;

/// Square roots by Newton's method, iterated until convergence.
pub struct Roots {
    exe: Box<dyn Executable>,
    outputs: Vec<Tensor>,
}

/// A root, with the iterations of this run and of all runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Root {
    /// The root; 0 for inputs that are not above 0.
    pub root: f32,
    /// Iterations of this run.
    pub iterations: i32,
    /// Iterations of all runs, counted in a state.
    pub total: i32,
}

/// Enough for numbers up to about 2^60: the estimate is halved until it is near the root.
const MAX_ITERATIONS: u64 = 40;

fn scalar(dtype: DType) -> Type {
    Type::new(dtype, [0usize; 0])
}

/// A graph whose arguments have these types.
fn block(
    arguments: &[Type],
    f: impl FnOnce(&mut Graph, &[Value]) -> Result<Vec<Value>, OpError>,
) -> Result<Graph, OpError> {
    let mut g = Graph::new();
    let mut values = Vec::new();
    for (at, ty) in arguments.iter().enumerate() {
        values.push(g.input(&format!("a{at}"), ty.clone())?);
    }
    for (at, value) in f(&mut g, &values)?.into_iter().enumerate() {
        g.output(&format!("r{at}"), value)?;
    }
    Ok(g)
}

fn graph() -> Result<Graph, OpError> {
    let mut g = Graph::new();
    let x = g.input("x", scalar(DType::F32))?;
    let total = g.state("total", scalar(DType::I32))?;
    let zero = g.scalar(DType::F32, 0.0)?;
    let none = g.scalar(DType::I32, 0.0)?;
    // Two blocks over y and x: whether the square of y is far from x, and an improved y.
    let of = [scalar(DType::I32), scalar(DType::F32), scalar(DType::F32)];
    let cond = block(&of, |g, a| {
        let square = g.mul(a[1], a[1])?;
        let far = g.sub(square, a[2])?;
        let far = g.abs(far)?;
        let near = g.scalar(DType::F32, 1e-5)?;
        let near = g.mul(a[2], near)?;
        Ok(vec![g.lt(near, far)?])
    })?;
    let body = block(&of, |g, a| {
        let one = g.scalar(DType::I32, 1.0)?;
        let other = g.div(a[2], a[1])?;
        let sum = g.plus(a[1], other)?;
        let half = g.scalar(DType::F32, 0.5)?;
        Ok(vec![g.plus(a[0], one)?, g.mul(sum, half)?])
    })?;
    let then = block(&of, |g, a| {
        let y = g.while_loop(&[a[0], a[1]], &[a[2]], cond, body, MAX_ITERATIONS)?;
        Ok(vec![y, y.port(1)])
    })?;
    let otherwise = block(&of, |g, a| Ok(vec![a[0], g.scalar(DType::F32, 0.0)?]))?;
    let is_above = g.lt(zero, x)?;
    let y = g.if_else(is_above, &[none, x, x], then, otherwise)?;
    let sum = g.plus(total, y)?;
    g.assign(total, sum)?;
    g.output("iterations", y)?;
    g.output("root", y.port(1))?;
    Ok(g)
}

impl Roots {
    /// Compiles the graph for a device.
    ///
    /// # Errors
    /// If the device cannot run the graph.
    pub fn open(device: &Device) -> Result<Roots, Failure> {
        let exe = device
            .backend()
            .compile(&graph()?, &CompileOptions::new())?;
        Ok(Roots {
            exe,
            outputs: Vec::new(),
        })
    }

    /// Computes the square root of a number.
    ///
    /// # Errors
    /// If the device fails, or the loop exceeds its maximum number of iterations, as for 1e30.
    pub async fn of(&mut self, x: f32) -> Result<Root, Failure> {
        let x = Tensor::scalar(x);
        let (inputs, outputs) = ([("x", &x)], &mut self.outputs);
        (self.exe.run_async(&inputs, OutputSelection::All, outputs)).await?;
        let total = self.exe.fetch_state("total")?.await?;
        let int = |t: &Tensor| Ok::<i32, Failure>(t.as_slice::<i32>()?[0]);
        Ok(Root {
            root: self.outputs[1].as_slice::<f32>()?[0],
            iterations: int(&self.outputs[0])?,
            total: int(&total)?,
        })
    }
}
