//! `tercet splat fit`: what is fitted to what, and the loop of steps.

use std::io::BufWriter;
use std::path::PathBuf;
use std::time::Instant;

use indicatif::ProgressBar;
use serde::Serialize;
use tercet::train::{
    AdamW, Evaluator, ParamGroup, Schedule, StepOptions, TrainStep, Trainable, Trainer, Weights,
};
use tercet::{CompileOptions, Device, Tensor};
use tercet_models::splat::Scene;
use tercet_models::splat::fit::{CAMERA, FitShape, Numbers, PICTURE, learning_rates, relocate};

use super::draw::{colour, size, vector};
use super::pictures::{Shot, Shots};
use crate::commands::{device, positive, seed, within};
use crate::error::{CliError, Outcome};
use crate::interrupt::{self, interrupted};
use crate::{destination, output, progress};

#[derive(clap::Args)]
#[command(group(clap::ArgGroup::new("pictures").required(true).args(["data", "from"])))]
pub(crate) struct Args {
    /// Pictures with known cameras: a folder with transforms.json as NeRF has it and PNG files, or the document itself
    #[arg(long, value_name = "PATH")]
    pub(super) data: Option<PathBuf>,
    /// Instead of pictures: a scene (.ply) that is drawn from cameras around it
    #[arg(long, value_name = "FILE.ply")]
    pub(super) from: Option<PathBuf>,
    /// How many pictures are drawn of --from
    #[arg(long, default_value_t = 24, value_name = "N", value_parser = positive, conflicts_with = "data")]
    pub(super) views: usize,
    /// The size of pictures that are drawn of --from
    #[arg(long, default_value = "128x128", value_name = "WxH", value_parser = size, conflicts_with = "data")]
    pub(super) size: [usize; 2],
    /// Make pictures smaller by this whole number
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = positive, conflicts_with = "from")]
    pub(super) shrink: usize,
    /// The scene to write, as `tercet splat` and viewers read it
    #[arg(short, long, default_value = "fitted.ply", value_name = "FILE.ply")]
    output: PathBuf,
    /// What the scene begins as: a .ply file of Gaussians, or of points with or without colours [default: Gaussians
    /// anywhere in a box around what cameras look at]
    #[arg(long, value_name = "FILE.ply", conflicts_with_all = ["gaussians", "center", "half_side"])]
    init: Option<PathBuf>,
    /// How many Gaussians there are in the box
    #[arg(long, default_value_t = 2000, value_name = "N", value_parser = positive)]
    gaussians: usize,
    /// The middle of the box [default: what the cameras look at]
    #[arg(long, value_name = "X,Y,Z", value_parser = vector, allow_hyphen_values = true, requires = "half_side")]
    center: Option<[f64; 3]>,
    /// Half of a side of the box [default: half of the distance of the cameras]
    #[arg(long = "box", value_name = "R", value_parser = within(1e-6..=1e6))]
    half_side: Option<f64>,
    /// The degree of the spherical harmonics by which colours depend on the direction, 0 to 3
    #[arg(long, default_value_t = 1, value_name = "D", value_parser = clap::value_parser!(u8).range(0..=3))]
    degree: u8,
    /// Steps in all; each sees one picture
    #[arg(long, default_value_t = 1000, value_name = "N", value_parser = positive)]
    steps: usize,
    /// What the learning rates are multiplied by
    #[arg(long, default_value_t = 1.0, value_name = "X", value_parser = within(0.0..=100.0))]
    lr: f64,
    /// The part of the loss that is 1 - SSIM; the rest is the mean absolute difference
    #[arg(long, default_value_t = 0.2, value_name = "PART", value_parser = within(0.0..=1.0))]
    ssim: f64,
    /// Steps after which Gaussians that show nothing move to others, in the first three quarters of all; 0 for never
    #[arg(long, default_value_t = 100, value_name = "N")]
    relocate_every: usize,
    /// Every so many views one is held out to tell how good the scene gets; 0 for none
    #[arg(long, default_value_t = 8, value_name = "N")]
    held_out: usize,
    /// Steps between looks at the held-out views [default: a fifth of all]
    #[arg(long, value_name = "N", value_parser = positive)]
    eval_every: Option<usize>,
    /// The colour behind the scene, and behind pictures that let light through
    #[arg(long, value_name = "R,G,B", value_parser = colour, allow_hyphen_values = true, default_value = "0,0,0")]
    background: [f64; 3],
    /// Seed of the box and of the order of pictures; -1 draws one
    #[arg(long, default_value_t = 0, value_name = "N", allow_negative_numbers = true, value_parser = seed)]
    seed: u64,
    /// Where to fit; see `tercet devices`
    #[arg(long, default_value = "auto", value_name = "NAME")]
    device: String,
    /// Print one JSON document at the end
    #[arg(long)]
    json: bool,
}

impl Args {
    pub(super) fn background(&self) -> [f32; 3] {
        self.background.map(|x| x as f32)
    }

    fn eval_every(&self) -> u64 {
        self.eval_every.unwrap_or(self.steps.div_ceil(5)) as u64
    }
}

#[derive(Serialize)]
struct Report<'a> {
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
    /// By the step after which they were found.
    loss: &'a [(u64, f32)],
    /// Of held-out views, or of all if none is.
    psnr: &'a [(u64, f64)],
    psnr_before: f64,
    psnr_after: f64,
    steps_per_second: f64,
    seconds: f64,
    interrupted: bool,
    unmoved: Vec<String>,
}

pub(crate) fn run(args: &Args) -> Result<Outcome, CliError> {
    let ply = args.output.extension();
    if !ply.is_some_and(|e| e.eq_ignore_ascii_case("ply")) {
        let path = args.output.display();
        let text = format!("cannot write to {path}; scenes are .ply files");
        return Err(CliError::Usage(text));
    }
    destination::check(&args.output)?;
    let device = device(&args.device)?;
    let spinner = progress::spinner("loading");
    let fit = Fit::prepare(args, &device);
    spinner.finish_and_clear();
    let mut fit = fit?;
    interrupt::listen();
    let began = Instant::now();
    let done = fit.steps();
    fit.bar.finish_and_clear();
    let seconds = began.elapsed().as_secs_f64();
    if let Err(e) = done {
        // The states are as they were before the step that failed: worth keeping.
        if fit.trainer.steps() > 0 {
            fit.write()?;
            let path = args.output.display();
            output::note(format_args!("note: the steps before it are kept in {path}"));
        }
        return Err(e);
    }
    let written = fit.write()?;
    fit.say(written, seconds)?;
    Ok(match interrupted() {
        true => Outcome::Interrupted,
        false => Outcome::Done,
    })
}

/// A fit under way.
struct Fit<'a> {
    args: &'a Args,
    shape: FitShape,
    image: [usize; 2],
    shown: Vec<Shot>,
    held_out: Vec<Shot>,
    trainer: Trainer,
    evaluator: Evaluator,
    numbers: Numbers,
    /// Pictures that are left of this turn through all.
    order: Vec<usize>,
    bar: ProgressBar,
    loss: Vec<(u64, f32)>,
    psnr: Vec<(u64, f64)>,
}

impl<'a> Fit<'a> {
    fn prepare(args: &'a Args, device: &Device) -> Result<Fit<'a>, CliError> {
        let mut numbers = Numbers::of(args.seed);
        let Shots { all, image, around } = Shots::of(args, device)?;
        let scene = begin(args, around, &mut numbers)?;
        let shape = FitShape {
            count: scene.len(),
            harmonics: scene.harmonics,
            image,
        };
        let extent = around.map_or_else(|| reach(&scene), |(_, distance)| distance);
        let trainer = trainer(args, device, shape, &scene, extent)?;
        let drawing = shape
            .drawing()
            .map_err(CliError::model("cannot draw the scene"))?;
        let evaluator = trainer.evaluator(&drawing, Weights::Current, &CompileOptions::new())?;
        let (mut shown, mut held_out) = (Vec::new(), Vec::new());
        // The last of each so many, so that few views hold none out.
        let is_held = |at: usize| args.held_out > 0 && (at + 1).is_multiple_of(args.held_out);
        for (at, shot) in all.into_iter().enumerate() {
            match is_held(at) {
                true => held_out.push(shot),
                false => shown.push(shot),
            }
        }
        if shown.is_empty() {
            let text = "--held-out 1 leaves no view to fit to".to_string();
            return Err(CliError::Usage(text));
        }
        Ok(Fit {
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
        self.look()?;
        while self.trainer.steps() < all && !interrupted() {
            if self.order.is_empty() {
                self.order = (0..self.shown.len()).collect();
            }
            let at = self.numbers.below(self.order.len());
            let Shot { camera, picture } = &self.shown[self.order.swap_remove(at)];
            let report = self.trainer.step(&[(CAMERA, camera), (PICTURE, picture)])?;
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
                self.look()?;
            }
        }
        self.look()
    }

    /// The mean PSNR of held-out views, or of all if there are none.
    fn look(&mut self) -> Result<(), CliError> {
        let views = match self.held_out.is_empty() {
            true => &self.shown,
            false => &self.held_out,
        };
        let mut sum = 0.0;
        for Shot { camera, picture } in views {
            let results = self
                .trainer
                .evaluate(&mut self.evaluator, &[(CAMERA, camera)])?;
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
            .suspend(|| output::note(format_args!("step {step}: {what} {psnr:.2} dB")));
        Ok(())
    }

    fn scene(&self) -> Result<Scene, CliError> {
        let names = self.shape.names().into_iter();
        let states: Result<Vec<Tensor>, _> = names.map(|name| self.trainer.state(name)).collect();
        Scene::from_fit_states(&self.shape, &states?)
            .map_err(CliError::model("cannot read the scene"))
    }

    /// Moves Gaussians that show nothing to others, and forgets the moments of both.
    fn relocate(&mut self) -> Result<(), CliError> {
        let mut scene = self.scene()?;
        let changed = relocate(&mut scene, &mut self.numbers);
        if changed.is_empty() {
            return Ok(());
        }
        let states = scene.fit_states();
        for (name, tensor) in states.map_err(CliError::model("cannot move Gaussians"))? {
            self.trainer.set_state(name, &tensor)?;
            for moment in ["m", "v"] {
                let name = format!("adamw.{moment}.{name}");
                let kept = self.trainer.state(&name)?;
                self.trainer.set_state(&name, &without(&kept, &changed)?)?;
            }
        }
        Ok(())
    }

    /// Writes what shows anything and says how much that is.
    fn write(&self) -> Result<usize, CliError> {
        let scene = self.scene()?.shown();
        destination::write(&self.args.output, |file| {
            scene.write_ply(&mut BufWriter::new(file))
        })?;
        Ok(scene.len())
    }

    fn say(&self, written: usize, seconds: f64) -> Result<(), CliError> {
        let at = |psnr: Option<&(u64, f64)>| psnr.map_or(f64::NAN, |(_, psnr)| *psnr);
        let [width, height] = self.image;
        let steps = self.trainer.steps();
        let report = Report {
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
            unmoved: self.trainer.unmoved()?,
        };
        if self.args.json {
            return output::json(&report);
        }
        output::note(format_args!(
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

/// What a scene begins as.
fn begin(
    args: &Args,
    around: Option<([f64; 3], f64)>,
    numbers: &mut Numbers,
) -> Result<Scene, CliError> {
    let harmonics = (usize::from(args.degree) + 1).pow(2);
    if let Some(path) = &args.init {
        let size = around.map_or(0.01, |(_, distance)| distance / 100.0);
        let shown = path.display();
        let scene = Scene::open_points(path, size);
        let scene = scene.map_err(CliError::model(format!("cannot read {shown}")))?;
        let scene = scene.shown().with_harmonics(harmonics);
        if scene.is_empty() {
            return Err(CliError::Fit(format!(
                "{shown} has no Gaussians or points that show"
            )));
        }
        return Ok(scene);
    }
    let center = args.center.or(around.map(|(center, _)| center));
    let half = args
        .half_side
        .or(around.map(|(_, distance)| distance / 2.0));
    let (Some(center), Some(half)) = (center, half) else {
        let text =
            "the cameras all look the same way; say where the scene is by --center and --box";
        return Err(CliError::Fit(text.to_string()));
    };
    Ok(Scene::random(
        args.gaussians,
        harmonics,
        center,
        half,
        numbers,
    ))
}

/// The greatest distance of a coordinate from the mean, for a scene whose cameras say nothing of its size.
fn reach(scene: &Scene) -> f64 {
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
    args: &Args,
    device: &Device,
    shape: FitShape,
    scene: &Scene,
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
    // Gradients of means over pixels are small.
    let optimizer = AdamW {
        epsilon: 1e-15,
        ..AdamW::default()
    };
    let step = TrainStep::build(
        &graph,
        loss,
        &trainables,
        &optimizer,
        &StepOptions::default(),
    )?;
    let schedule = Schedule::cosine(args.lr, 0, args.steps as u64).ending_at(args.lr / 10.0);
    let mut trainer = Trainer::new(device, step, schedule, &CompileOptions::new())?;
    for (name, tensor) in &states {
        trainer.set_state(name, tensor)?;
    }
    Ok(trainer)
}

/// A tensor with zeros in some rows.
fn without(tensor: &Tensor, rows: &[usize]) -> Result<Tensor, CliError> {
    let failed = |source| CliError::Tensor {
        what: "a moment is no tensor of numbers".to_string(),
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

/// The peak signal-to-noise ratio of an image, whose brightest value is 1.
fn psnr(image: &Tensor, picture: &Tensor) -> f64 {
    let (image, picture) = (image.to_f64s(), picture.to_f64s());
    let squares = image
        .iter()
        .zip(&picture)
        .map(|(a, b)| (a.clamp(0.0, 1.0) - b).powi(2));
    let mean = squares.sum::<f64>() / image.len().max(1) as f64;
    -10.0 * mean.max(1e-10).log10()
}
