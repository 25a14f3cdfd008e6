//! `tercet splat fit`: training images, initial scene and the optimization loop.

use std::io::BufWriter;
use std::path::PathBuf;
use std::time::Instant;

use indicatif::ProgressBar;
use serde::Serialize;
use tercet::train::{
    AdamW, EvalWeights, Evaluator, LearningRateSchedule, ParamGroup, StepOptions, TrainStep,
    Trainable, Trainer,
};
use tercet::{CompileOptions, Device, Tensor};
use tercet_models::splat::SplatScene;
use tercet_models::splat::fit::{
    CAMERA, DEGREE, FitShape, PICTURE, SplatFitRng, learning_rates, relocate,
};

use super::draw::{colour, size, vector};
use super::pictures::{PosedImage, PosedImageSet};
use crate::commands::{device, positive, seed, within};
use crate::error::{CliError, CommandOutcome};
use crate::interrupt::{self, interrupted};
use crate::{output, output_path, progress};

#[derive(clap::Args)]
#[command(group(clap::ArgGroup::new("pictures").required(true).args(["data", "from"])))]
pub(crate) struct SplatFitArgs {
    /// Images with known cameras: a folder with a NeRF transforms.json and PNG files, or the JSON
    /// file itself
    #[arg(long, value_name = "PATH")]
    pub(super) data: Option<PathBuf>,
    /// Fit to rendered images of this scene (.ply), from cameras around it
    #[arg(long, value_name = "FILE.ply")]
    pub(super) from: Option<PathBuf>,
    /// Number of images to render of --from
    #[arg(long, default_value_t = 24, value_name = "N", value_parser = positive, conflicts_with = "data")]
    pub(super) views: usize,
    /// Size of the images rendered of --from
    #[arg(long, default_value = "128x128", value_name = "WxH", value_parser = size, conflicts_with = "data")]
    pub(super) size: [usize; 2],
    /// Downscale the images by this integer factor
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = positive, conflicts_with = "from")]
    pub(super) shrink: usize,
    /// Output scene (.ply), readable by `tercet splat` and other viewers
    #[arg(short, long, default_value = "fitted.ply", value_name = "FILE.ply")]
    output: PathBuf,
    /// Initial scene: a .ply file of Gaussians, or of points with or without colours [default:
    /// random Gaussians in a box around the point that the cameras look at]
    #[arg(long, value_name = "FILE.ply", conflicts_with_all = ["gaussians", "center", "half_side"])]
    init: Option<PathBuf>,
    /// Number of random Gaussians in the box
    #[arg(long, default_value_t = 2000, value_name = "N", value_parser = positive)]
    gaussians: usize,
    /// Centre of the box [default: the point that the cameras look at]
    #[arg(long, value_name = "X,Y,Z", value_parser = vector, allow_hyphen_values = true, requires = "half_side")]
    center: Option<[f64; 3]>,
    /// Half of the side length of the box [default: half of the cameras' distance]
    #[arg(long = "box", value_name = "R", value_parser = within(1e-6..=1e6))]
    half_side: Option<f64>,
    /// Degree of the spherical harmonics of view-dependent colour, 0 to 3
    #[arg(long, default_value_t = 1, value_name = "D", value_parser = clap::value_parser!(u8).range(0..=3))]
    degree: u8,
    /// Start with degree 0, and add a degree every N steps; 0 for all degrees from the start
    #[arg(long, default_value_t = 0, value_name = "N")]
    degree_every: usize,
    /// Maximum ratio of the largest and the smallest axis of a Gaussian [default: no limit]
    #[arg(long, value_name = "X", value_parser = within(1.0..=1e6))]
    anisotropy: Option<f64>,
    /// Maximum norm of the gradient; larger ones are scaled down [default: no limit]
    #[arg(long, value_name = "X", value_parser = within(1e-12..=1e12))]
    clip: Option<f64>,
    /// Total number of steps; each step uses one image
    #[arg(long, default_value_t = 1000, value_name = "N", value_parser = positive)]
    steps: usize,
    /// Factor on all learning rates
    #[arg(long, default_value_t = 1.0, value_name = "X", value_parser = within(0.0..=100.0))]
    lr: f64,
    /// Weight of 1 - SSIM in the loss; the mean absolute error has the remaining weight
    #[arg(long, default_value_t = 0.2, value_name = "PART", value_parser = within(0.0..=1.0))]
    ssim: f64,
    /// Steps between relocations of invisible Gaussians, during the first three quarters of all
    /// steps; 0 for never
    #[arg(long, default_value_t = 100, value_name = "N")]
    relocate_every: usize,
    /// Hold out every N-th view for evaluation; 0 for none
    #[arg(long, default_value_t = 8, value_name = "N")]
    held_out: usize,
    /// Steps between evaluations of the held-out views [default: a fifth of all steps]
    #[arg(long, value_name = "N", value_parser = positive)]
    eval_every: Option<usize>,
    /// Background colour of the scene, and of transparent pixels in the images
    #[arg(long, value_name = "R,G,B", value_parser = colour, allow_hyphen_values = true, default_value = "0,0,0")]
    background: [f64; 3],
    /// Seed of the random Gaussians and of the image order; -1 draws one
    #[arg(long, default_value_t = 0, value_name = "N", allow_negative_numbers = true, value_parser = seed)]
    seed: u64,
    /// Device to run on; see `tercet devices`
    #[arg(long, default_value = "auto", value_name = "NAME")]
    device: String,
    /// Print one JSON document at the end
    #[arg(long)]
    json: bool,
}

impl SplatFitArgs {
    pub(super) fn background(&self) -> [f32; 3] {
        self.background.map(|x| x as f32)
    }

    fn eval_every(&self) -> u64 {
        self.eval_every.unwrap_or(self.steps.div_ceil(5)) as u64
    }
}

#[derive(Serialize)]
struct SplatFitReport<'a> {
    device: &'a str,
    output: String,
    views: usize,
    held_out_views: usize,
    width: usize,
    height: usize,
    gaussians: usize,
    written: usize,
    steps: u64,
    seed: u64,
    /// With the step after which each loss was measured.
    loss: &'a [(u64, f32)],
    /// PSNR of the held-out views, or of all views if none is held out.
    psnr: &'a [(u64, f64)],
    psnr_before: f64,
    psnr_after: f64,
    steps_per_second: f64,
    seconds: f64,
    interrupted: bool,
    unmoved: Vec<String>,
}

pub(crate) fn run(args: &SplatFitArgs) -> Result<CommandOutcome, CliError> {
    let ply = args.output.extension();
    if !ply.is_some_and(|e| e.eq_ignore_ascii_case("ply")) {
        let path = args.output.display();
        let text = format!("cannot write to {path}; expected a .ply file");
        return Err(CliError::Usage(text));
    }
    output_path::check(&args.output)?;
    let device = device(&args.device)?;
    let spinner = progress::spinner("loading");
    let fit = SplatFitRun::prepare(args, &device);
    spinner.finish_and_clear();
    let mut fit = fit?;
    interrupt::listen();
    let began = Instant::now();
    let done = fit.steps();
    fit.bar.finish_and_clear();
    let seconds = began.elapsed().as_secs_f64();
    if let Err(e) = done {
        // A failed step leaves the states of the previous step intact, so they are saved.
        if fit.trainer.steps() > 0 {
            fit.write()?;
            let path = args.output.display();
            output::print_note(format_args!("note: the previous steps are saved in {path}"));
        }
        return Err(e);
    }
    let written = fit.write()?;
    fit.print_report(written, seconds)?;
    Ok(match interrupted() {
        true => CommandOutcome::Interrupted,
        false => CommandOutcome::Done,
    })
}

/// State of a fit.
struct SplatFitRun<'a> {
    args: &'a SplatFitArgs,
    shape: FitShape,
    image: [usize; 2],
    shown: Vec<PosedImage>,
    held_out: Vec<PosedImage>,
    trainer: Trainer,
    evaluator: Evaluator,
    numbers: SplatFitRng,
    /// Indices of the images that the current epoch has not used yet.
    order: Vec<usize>,
    bar: ProgressBar,
    loss: Vec<(u64, f32)>,
    psnr: Vec<(u64, f64)>,
}

impl<'a> SplatFitRun<'a> {
    fn prepare(args: &'a SplatFitArgs, device: &Device) -> Result<SplatFitRun<'a>, CliError> {
        let mut numbers = SplatFitRng::new(args.seed);
        let PosedImageSet {
            images: all,
            image,
            look_at: around,
        } = PosedImageSet::new(args, device)?;
        let scene = begin(args, around, &mut numbers)?;
        let shape = FitShape::new(scene.len(), scene.harmonics, image)
            .with_max_anisotropy(args.anisotropy)
            .with_growing_degree(args.degree_every > 0 && scene.harmonics > 1);
        let extent = around.map_or_else(|| reach(&scene), |(_, distance)| distance);
        let trainer = trainer(args, device, shape, &scene, extent)?;
        let drawing = shape
            .drawing()
            .map_err(CliError::model("cannot render the scene"))?;
        let evaluator =
            trainer.evaluator(&drawing, EvalWeights::Current, &CompileOptions::new())?;
        let (mut shown, mut held_out) = (Vec::new(), Vec::new());
        // Every `held_out`-th view, so with fewer views than that none is held out.
        let is_held = |at: usize| args.held_out > 0 && (at + 1).is_multiple_of(args.held_out);
        for (at, shot) in all.into_iter().enumerate() {
            match is_held(at) {
                true => held_out.push(shot),
                false => shown.push(shot),
            }
        }
        if shown.is_empty() {
            let text = "--held-out 1 holds out all views; none is left for training".to_string();
            return Err(CliError::Usage(text));
        }
        Ok(SplatFitRun {
            args,
            shape,
            image,
            shown,
            held_out,
            trainer,
            evaluator,
            numbers,
            order: Vec::new(),
            bar: progress::bar("fitting", args.steps, "steps"),
            loss: Vec::new(),
            psnr: Vec::new(),
        })
    }

    fn steps(&mut self) -> Result<(), CliError> {
        let all = self.args.steps as u64;
        self.evaluate_held_out()?;
        while self.trainer.steps() < all && !interrupted() {
            if self.order.is_empty() {
                self.order = (0..self.shown.len()).collect();
            }
            let at = self.numbers.below(self.order.len());
            let PosedImage {
                camera,
                image: picture,
            } = &self.shown[self.order.swap_remove(at)];
            let degree = self.degree();
            let mut inputs = vec![(CAMERA, camera), (PICTURE, picture)];
            inputs.extend(degree.as_ref().map(|degree| (DEGREE, degree)));
            let report = self.trainer.step(&inputs)?;
            self.loss.push((report.step, report.loss));
            self.bar.set_position(report.step);
            let psnr = self.psnr.last().map_or(f64::NAN, |(_, psnr)| *psnr);
            self.bar
                .set_message(format!("loss {:.4}, {psnr:.2} dB", report.loss));
            let every = self.args.relocate_every as u64;
            if every > 0 && report.step.is_multiple_of(every) && report.step <= all / 4 * 3 {
                self.relocate()?;
            }
            if report.step.is_multiple_of(self.args.eval_every()) && report.step < all {
                self.evaluate_held_out()?;
            }
        }
        self.evaluate_held_out()
    }

    /// The active degree of the spherical harmonics in the next step, if it grows.
    fn degree(&self) -> Option<Tensor> {
        let every = (self.args.degree_every as u64).max(1);
        let grown = (self.trainer.steps() / every).min(u64::from(self.args.degree));
        self.shape
            .degree_grows
            .then(|| Tensor::scalar(grown as f32))
    }

    /// Mean PSNR of the held-out views, or of all views if none is held out.
    fn evaluate_held_out(&mut self) -> Result<(), CliError> {
        let views = match self.held_out.is_empty() {
            true => &self.shown,
            false => &self.held_out,
        };
        let mut sum = 0.0;
        let degree = self.degree();
        for PosedImage {
            camera,
            image: picture,
        } in views
        {
            let mut inputs = vec![(CAMERA, camera)];
            inputs.extend(degree.as_ref().map(|degree| (DEGREE, degree)));
            let results = self.trainer.evaluate(&mut self.evaluator, &inputs)?;
            sum += results
                .first()
                .map_or(f64::NAN, |image| psnr(image, picture));
        }
        let (step, psnr) = (self.trainer.steps(), sum / views.len() as f64);
        self.psnr.push((step, psnr));
        let what = match self.held_out.is_empty() {
            true => "PSNR",
            false => "held-out PSNR",
        };
        self.bar
            .suspend(|| output::print_note(format_args!("step {step}: {what} {psnr:.2} dB")));
        Ok(())
    }

    fn scene(&self) -> Result<SplatScene, CliError> {
        let names = self.shape.names().into_iter();
        let states: Result<Vec<Tensor>, _> = names.map(|name| self.trainer.state(name)).collect();
        SplatScene::from_fit_states(&self.shape, &states?)
            .map_err(CliError::model("cannot read the scene"))
    }

    /// Moves invisible Gaussians to the positions of visible ones, and resets the optimizer moments
    /// of both.
    fn relocate(&mut self) -> Result<(), CliError> {
        let mut scene = self.scene()?;
        let changed = relocate(&mut scene, &mut self.numbers);
        if changed.is_empty() {
            return Ok(());
        }
        let states = scene.fit_states();
        for (name, tensor) in states.map_err(CliError::model("cannot relocate Gaussians"))? {
            self.trainer.set_state(name, &tensor)?;
            for moment in ["m", "v"] {
                let name = format!("adamw.{moment}.{name}");
                let kept = self.trainer.state(&name)?;
                self.trainer.set_state(&name, &without(&kept, &changed)?)?;
            }
        }
        Ok(())
    }

    /// Writes the visible Gaussians and returns their number.
    fn write(&self) -> Result<usize, CliError> {
        let scene = self.scene()?.visible();
        output_path::write(&self.args.output, |file| {
            scene.write_ply(&mut BufWriter::new(file))
        })?;
        Ok(scene.len())
    }

    fn print_report(&self, written: usize, seconds: f64) -> Result<(), CliError> {
        let at = |psnr: Option<&(u64, f64)>| psnr.map_or(f64::NAN, |(_, psnr)| *psnr);
        let [width, height] = self.image;
        let steps = self.trainer.steps();
        let report = SplatFitReport {
            device: self.trainer.device().name(),
            output: self.args.output.display().to_string(),
            views: self.shown.len(),
            held_out_views: self.held_out.len(),
            width,
            height,
            gaussians: self.shape.count,
            written,
            steps,
            seed: self.args.seed,
            loss: &self.loss,
            psnr: &self.psnr,
            psnr_before: at(self.psnr.first()),
            psnr_after: at(self.psnr.last()),
            steps_per_second: steps as f64 / seconds.max(1e-9),
            seconds,
            interrupted: interrupted(),
            unmoved: self.trainer.unchanged_trainables()?,
        };
        if self.args.json {
            return output::json(&report);
        }
        output::print_note(format_args!(
            "{steps} steps of {width}x{height} pixels, {:.1} steps/s, {seconds:.1} s; PSNR {:.2} to {:.2} dB; wrote {} \
             Gaussians to {}",
            report.steps_per_second,
            report.psnr_before,
            report.psnr_after,
            output::count(written as u64),
            report.output
        ));
        Ok(())
    }
}

/// The initial scene.
fn begin(
    args: &SplatFitArgs,
    around: Option<([f64; 3], f64)>,
    numbers: &mut SplatFitRng,
) -> Result<SplatScene, CliError> {
    let harmonics = (usize::from(args.degree) + 1).pow(2);
    if let Some(path) = &args.init {
        let size = around.map_or(0.01, |(_, distance)| distance / 100.0);
        let shown = path.display();
        let scene = SplatScene::open_points(path, size);
        let scene = scene.map_err(CliError::model(format!("cannot read {shown}")))?;
        let scene = scene.visible().with_harmonics(harmonics);
        if scene.is_empty() {
            return Err(CliError::Fit(format!(
                "{shown} has no visible Gaussians or points"
            )));
        }
        return Ok(scene);
    }
    let center = args.center.or(around.map(|(center, _)| center));
    let half = args
        .half_side
        .or(around.map(|(_, distance)| distance / 2.0));
    let (Some(center), Some(half)) = (center, half) else {
        let text = "all cameras have parallel view directions; set the scene's position with --center and --box";
        return Err(CliError::Fit(text.to_string()));
    };
    Ok(SplatScene::random(
        args.gaussians,
        harmonics,
        center,
        half,
        numbers,
    ))
}

/// Maximum distance of a coordinate from the mean. The distance is the size of the scene if the
/// cameras do not determine it.
fn reach(scene: &SplatScene) -> f64 {
    let count = scene.len().max(1) as f64;
    let reach = (0..3).map(|axis| {
        let along = || {
            scene
                .positions
                .iter()
                .skip(axis)
                .step_by(3)
                .map(|x| f64::from(*x))
        };
        let mean = along().sum::<f64>() / count;
        along().fold(0.0, |most: f64, x| most.max((x - mean).abs()))
    });
    reach.fold(1e-6, f64::max)
}

fn trainer(
    args: &SplatFitArgs,
    device: &Device,
    shape: FitShape,
    scene: &SplatScene,
    extent: f64,
) -> Result<Trainer, CliError> {
    let what = "cannot fit the scene";
    let (graph, loss) = shape.loss(args.ssim).map_err(CliError::model(what))?;
    let states = scene.fit_states().map_err(CliError::model(what))?;
    let rates = learning_rates(extent);
    let trainables = states.iter().map(|(name, _)| {
        let rate = rates.iter().find(|(own, _)| own == name);
        Trainable::new(*name).in_group(ParamGroup {
            name: (*name).to_string(),
            learning_rate: rate.map_or(1.0, |(_, rate)| *rate),
            weight_decay: Some(0.0),
        })
    });
    let trainables: Vec<Trainable> = trainables.collect();
    // Gradients of means over pixels are small, so AdamW needs a small epsilon.
    let optimizer = AdamW {
        epsilon: 1e-15,
        ..AdamW::default()
    };
    let options = StepOptions {
        clip_norm: args.clip,
        ..StepOptions::default()
    };
    let step = TrainStep::build(&graph, loss, &trainables, &optimizer, &options)?;
    let schedule =
        LearningRateSchedule::cosine(args.lr, 0, args.steps as u64).ending_at(args.lr / 10.0);
    let mut trainer = Trainer::new(device, step, schedule, &CompileOptions::new())?;
    for (name, tensor) in &states {
        trainer.set_state(name, tensor)?;
    }
    Ok(trainer)
}

/// A copy of a tensor with zeros in some rows.
fn without(tensor: &Tensor, rows: &[usize]) -> Result<Tensor, CliError> {
    let failed = |source| CliError::Tensor {
        what: "cannot create a tensor for an optimizer moment".to_string(),
        source,
    };
    let shape = tensor.shape().to_vec();
    let width: usize = shape[1..].iter().product();
    let mut list = tensor.as_slice::<f32>().map_err(failed)?.to_vec();
    for row in rows {
        list[row * width..][..width].fill(0.0);
    }
    Tensor::from_slice(&shape, &list).map_err(failed)
}

/// Peak signal-to-noise ratio of an image with values from 0 to 1.
fn psnr(image: &Tensor, picture: &Tensor) -> f64 {
    let (image, picture) = (image.to_f64s(), picture.to_f64s());
    let squares = image
        .iter()
        .zip(&picture)
        .map(|(a, b)| (a.clamp(0.0, 1.0) - b).powi(2));
    let mean = squares.sum::<f64>() / image.len().max(1) as f64;
    -10.0 * mean.max(1e-10).log10()
}
