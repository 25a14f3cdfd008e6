//! What is trained, and by which settings.

use tercet_ir::Type;

/// Settings that some trainables share.
#[derive(Clone, Debug, PartialEq)]
pub struct ParamGroup {
    /// Its name, for reports.
    pub name: String,
    /// What the learning rate is multiplied by, 0 or more.
    pub learning_rate: f64,
    /// The weight decay in place of the optimizer's, 0 or more.
    pub weight_decay: Option<f64>,
}

impl ParamGroup {
    /// The group `decay`: the optimizer's own settings.
    pub fn decay() -> ParamGroup {
        ParamGroup {
            name: "decay".to_string(),
            learning_rate: 1.0,
            weight_decay: None,
        }
    }

    /// The group `no_decay`: the optimizer's settings without weight decay.
    pub fn no_decay() -> ParamGroup {
        ParamGroup {
            name: "no_decay".to_string(),
            weight_decay: Some(0.0),
            ..ParamGroup::decay()
        }
    }

    /// The group of a trainable that is given none: [`ParamGroup::no_decay`] for scalars, vectors, biases and weights of
    /// norms, which are told by `bias` at the end of the name or `norm` in it; [`ParamGroup::decay`] for the rest.
    pub fn default_of(name: &str, ty: &Type) -> ParamGroup {
        let name = name.to_ascii_lowercase();
        match ty.rank() <= 1 || name.ends_with("bias") || name.contains("norm") {
            true => ParamGroup::no_decay(),
            false => ParamGroup::decay(),
        }
    }
}

/// A state of the graph that is trained, `F32` of any shape.
#[derive(Clone, Debug, PartialEq)]
pub struct Trainable {
    /// The state's name.
    pub name: String,
    /// Its group; [`ParamGroup::default_of`] where there is none.
    pub group: Option<ParamGroup>,
}

impl Trainable {
    /// A trainable in the group that its name and type suggest.
    pub fn new(name: impl Into<String>) -> Trainable {
        Trainable {
            name: name.into(),
            group: None,
        }
    }

    /// Puts it into a group and returns it, for chaining.
    pub fn in_group(mut self, group: ParamGroup) -> Trainable {
        self.group = Some(group);
        self
    }
}

impl From<&str> for Trainable {
    fn from(name: &str) -> Trainable {
        Trainable::new(name)
    }
}

impl From<String> for Trainable {
    fn from(name: String) -> Trainable {
        Trainable::new(name)
    }
}
