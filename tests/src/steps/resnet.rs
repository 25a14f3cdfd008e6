//! ResNet-50 with its stride in the 3x3 convolutions (He and others, 2016; torchvision's variant).
//! The running statistics of batch norms stay F32.

use tercet::ops::{PoolFn, Window};
use tercet::{BatchNorm, DType, TensorType, Type, Value, fill::InputFill};

use super::draft::StepGraphBuilder;
use super::models::indices;
use super::{BoxError, StepNet, StepScale, pattern};

/// The sizes of a network.
struct ResNetSizes {
    rows: usize,
    side: usize,
    /// The number of channels after the first convolution.
    width: usize,
    /// The number of blocks of each stage.
    blocks: &'static [usize],
    classes: usize,
}

/// ResNet-50 with 25.6 million parameters.
pub(super) fn resnet50(size: StepScale, dtype: DType) -> Result<StepNet, BoxError> {
    let net = match size {
        StepScale::Whole => ResNetSizes {
            rows: 64,
            side: 224,
            width: 64,
            blocks: &[3, 4, 6, 3],
            classes: 1000,
        },
        StepScale::Small => ResNetSizes {
            rows: 2,
            side: 32,
            width: 8,
            blocks: &[1, 1],
            classes: 10,
        },
    };
    net.net(dtype)
}

impl ResNetSizes {
    fn net(&self, dtype: DType) -> Result<StepNet, BoxError> {
        let ResNetSizes {
            rows,
            side,
            width,
            blocks,
            classes,
        } = *self;
        let shape = [rows, 3, side, side];
        let mut d = StepGraphBuilder::new(dtype);
        let images = d.graph.input("images", Type::new(DType::F32, shape))?;
        let labels = d.graph.input("labels", Type::new(DType::I32, [rows]))?;
        let x = d.own(images)?;
        let x = conv_norm(&mut d, x, "conv", [3, width], [7, 2])?;
        let x = d.graph.relu(x)?;
        let window = Window::new(2).with_stride(&[2, 2]);
        let window = window.with_pads(&[1, 1], &[1, 1]);
        let mut x = d.graph.pool(x, PoolFn::Max, &[3, 3], window)?;
        let mut channels = width;
        for (stage, &count) in blocks.iter().enumerate() {
            for block in 0..count {
                let at = format!("layer{}.{block}", stage + 1);
                let stride = if stage > 0 && block == 0 { 2 } else { 1 };
                x = bottleneck(&mut d, x, &at, [channels, width << stage, stride])?;
                channels = 4 * (width << stage);
            }
        }
        let wide = d.graph.cast(x, DType::F32)?;
        let mean = d.graph.reduce_mean(wide, &[2, 3], false)?;
        let mean = d.own(mean)?;
        let logits = d.linear(mean, "fc", [channels, classes])?;
        let ty = TensorType::new(DType::F32, &shape);
        let batch = vec![
            ("images", pattern("images", &ty, &InputFill::Normal)?),
            ("labels", indices("labels", &[rows], classes)?),
        ];
        d.finish(logits, labels, classes, batch, (rows, "images"))
    }
}

/// 1x1, 3x3 and 1x1 convolutions with a residual connection.
fn bottleneck(
    d: &mut StepGraphBuilder,
    x: Value,
    at: &str,
    [inner, width, stride]: [usize; 3],
) -> Result<Value, BoxError> {
    let out = 4 * width;
    let name = |part: &str| format!("{at}.{part}");
    let h = conv_norm(d, x, &name("conv1"), [inner, width], [1, 1])?;
    let h = d.graph.relu(h)?;
    let h = conv_norm(d, h, &name("conv2"), [width, width], [3, stride])?;
    let h = d.graph.relu(h)?;
    let h = conv_norm(d, h, &name("conv3"), [width, out], [1, 1])?;
    let way = match (stride, inner == out) {
        (1, true) => x,
        _ => conv_norm(d, x, &name("downsample"), [inner, out], [1, stride])?,
    };
    let h = d.graph.plus(h, way)?;
    Ok(d.graph.relu(h)?)
}

/// A convolution without bias, followed by batch norm.
fn conv_norm(
    d: &mut StepGraphBuilder,
    x: Value,
    name: &str,
    [inner, out]: [usize; 2],
    [kernel, stride]: [usize; 2],
) -> Result<Value, BoxError> {
    let bound = (3.0 / (inner * kernel * kernel) as f64).sqrt();
    let w = d.master(
        &format!("{name}.weight"),
        &[out, inner, kernel, kernel],
        bound,
    )?;
    let w = d.own(w)?;
    let pads = [kernel / 2; 2];
    let window = Window::new(2).with_stride(&[stride; 2]);
    let y = d
        .graph
        .conv(x, w, None, window.with_pads(&pads, &pads), 1)?;
    let weights = [
        d.vector(&format!("{name}.norm.weight"), out, 1.0)?,
        d.vector(&format!("{name}.norm.bias"), out, 0.0)?,
    ];
    let running = [
        d.running(&format!("{name}.norm.running_mean"), out, 0.0)?,
        d.running(&format!("{name}.norm.running_var"), out, 1.0)?,
    ];
    Ok(d.graph
        .batch_norm(y, weights, running, BatchNorm::default())?)
}
