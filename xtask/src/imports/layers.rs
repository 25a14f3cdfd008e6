//! The committed layers.
//!
//! ```text
//! # A comment.
//! [tercet-models]
//! files: gguf safetensors
//! text: tokenizer
//! allow gguf -> tokenizer 1
//! ```
//!
//! An allowance is for an upward arrow that is not mended yet, with the count of its sites at most.

use super::arrows::{self, Arrow};

/// The layers of one folder of modules.
#[derive(Debug)]
pub(super) struct LayerSection {
    /// The folder, written `tercet-a::b`.
    pub(super) folder: String,
    /// Names of layers with their modules, lowest first.
    pub(super) layers: Vec<(String, Vec<String>)>,
    /// Upward arrows with the count of their sites.
    allowed: Vec<(String, String, usize)>,
}

/// Reads the sections; the error starts with the line number.
pub(super) fn parse(text: &str) -> Result<Vec<LayerSection>, String> {
    let mut sections: Vec<LayerSection> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        if let Some(folder) = line.strip_prefix('[').and_then(|l| l.strip_suffix(']')) {
            sections.push(LayerSection {
                folder: folder.to_string(),
                layers: Vec::new(),
                allowed: Vec::new(),
            });
        } else if !sections.last_mut().is_some_and(|s| s.read_line(line)) {
            return Err(format!(
                "{}: `{line}`, expected `[FOLDER]`, `LAYER: MODULES` or `allow A -> B COUNT`",
                number + 1
            ));
        }
    }
    Ok(sections)
}

impl LayerSection {
    /// False if the line is neither a layer nor an allowance.
    fn read_line(&mut self, line: &str) -> bool {
        let words: Vec<&str> = line.split_whitespace().collect();
        if let ["allow", from, "->", to, count] = words[..] {
            let count = count.parse().map(|count| {
                self.allowed.push((from.to_string(), to.to_string(), count));
            });
            return count.is_ok();
        }
        line.split_once(':').is_some_and(|(layer, modules)| {
            let modules = modules.split_whitespace().map(String::from).collect();
            self.layers.push((layer.to_string(), modules));
            true
        })
    }

    /// The index of a module's layer.
    fn layer(&self, module: &str) -> Option<usize> {
        let has = |(_, modules): &(String, Vec<String>)| modules.iter().any(|m| m == module);
        self.layers.iter().position(has)
    }

    /// Modules without a layer or with two, and names in layers that are no modules.
    pub(super) fn unlisted(&self, children: &[&str]) -> Vec<String> {
        let folder = &self.folder;
        let listed: Vec<&str> = self
            .layers
            .iter()
            .flat_map(|(_, modules)| modules.iter().map(String::as_str))
            .collect();
        let mut problems = Vec::new();
        for child in children {
            match listed.iter().filter(|name| *name == child).count() {
                0 => problems.push(format!("has no layer for `{child}`")),
                1 => {}
                _ => problems.push(format!("has several layers for `{child}`")),
            }
        }
        let unknown = listed.iter().filter(|name| !children.contains(name));
        problems.extend(unknown.map(|name| format!("names `{name}`, which is no module")));
        let place = |problem| format!("{}: [{folder}] {problem}", super::LAYERS);
        problems.into_iter().map(place).collect()
    }

    /// The upward arrows above their allowances, and the allowances without an arrow.
    pub(super) fn upward(&self, arrows: &[Arrow]) -> Vec<String> {
        let mut problems = Vec::new();
        for arrow in arrows.iter().filter(|arrow| self.is_upward(arrow)) {
            let allowed = self.allowance(arrow);
            let count = arrow.sites.len();
            if allowed.is_some_and(|most| count <= most) {
                continue;
            }
            let allowed = allowed.map(|n| format!(" (allowed {n}, found {count})"));
            let layer = |module| self.layer(module).map_or("", |at| &self.layers[at].0);
            problems.push(format!(
                "{}: `{}` ({}) -> `{}` ({}){}\n    {}",
                self.folder,
                arrow.from,
                layer(&arrow.from),
                arrow.to,
                layer(&arrow.to),
                allowed.unwrap_or_default(),
                arrow.sites.join("\n    ")
            ));
        }
        for (from, to, count) in &self.allowed {
            let exists = |arrow: &&Arrow| arrow.from == *from && arrow.to == *to;
            if !arrows
                .iter()
                .filter(|a| self.is_upward(a))
                .any(|arrow| exists(&arrow))
            {
                let folder = &self.folder;
                problems.push(format!(
                    "{folder}: `{from}` -> `{to}`: allowed {count}, found 0"
                ));
            }
        }
        problems
    }

    fn is_upward(&self, arrow: &Arrow) -> bool {
        let layers = self.layer(&arrow.from).zip(self.layer(&arrow.to));
        layers.is_some_and(|(from, to)| from < to)
    }

    fn allowance(&self, arrow: &Arrow) -> Option<usize> {
        let same =
            |(from, to, _): &&(String, String, usize)| *from == arrow.from && *to == arrow.to;
        self.allowed.iter().find(same).map(|(.., count)| *count)
    }

    /// The circles that contain a folder, without the allowed arrows.
    pub(super) fn circles(
        &self,
        arrows: &[Arrow],
        is_folder: impl Fn(&str) -> bool,
    ) -> Vec<String> {
        let counted = arrows.iter().filter(|arrow| {
            !(self.is_upward(arrow) && self.allowance(arrow) >= Some(arrow.sites.len()))
        });
        let pairs: Vec<(&str, &str)> = counted.map(|a| (&*a.from, &*a.to)).collect();
        arrows::circles(&pairs)
            .into_iter()
            .filter(|circle| circle.iter().any(|module| is_folder(module)))
            .map(|circle| format!("{}: circle of modules: {}", self.folder, circle.join(" ")))
            .collect()
    }
}
