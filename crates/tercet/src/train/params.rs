//! Trainables and their settings.

use tercet_ir::Type;

/// Settings shared by several trainables.
///
/// ```
/// use tercet::train::ParamGroup;
/// use tercet::{DType, Type};
/// let group = ParamGroup { learning_rate: 0.1, ..ParamGroup::decay() };
/// assert_eq!(group.weight_decay, None);
/// let matrix = Type::new(DType::F32, [4, 2]);
/// assert_eq!(ParamGroup::default_of("layer.weight", &matrix), ParamGroup::decay());
/// assert_eq!(ParamGroup::default_of("norm.weight", &matrix), ParamGroup::no_decay());
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct ParamGroup {
    /// Name of the group, for reports.
    pub name: String,
    /// Factor on the learning rate, 0 or more.
    pub learning_rate: f64,
    /// Weight decay that replaces the optimizer's, 0 or more.
    pub weight_decay: Option<f64>,
}

impl ParamGroup {
    /// The parameter group `decay`, which has the default settings of the optimizer.
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

    /// Default group of a trainable. The default group is [`ParamGroup::no_decay`] for scalars and
    /// vectors, for names that end in `bias`, and for names that contain `norm`. All others are in
    /// [`ParamGroup::decay`].
    pub fn default_of(name: &str, ty: &Type) -> ParamGroup {
        let name = name.to_ascii_lowercase();
        match ty.rank() <= 1 || name.ends_with("bias") || name.contains("norm") {
            true => ParamGroup::no_decay(),
            false => ParamGroup::decay(),
        }
    }
}

/// A state of the graph to train, `F32` of any shape.
///
/// ```
/// use tercet::train::{ParamGroup, Trainable};
/// let embedding = Trainable::new("embed.weight").in_group(ParamGroup::no_decay());
/// assert_eq!(embedding.group, Some(ParamGroup::no_decay()));
/// assert_eq!(Trainable::from("w"), Trainable::new("w"));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Trainable {
    /// Name of the state.
    pub name: String,
    /// Group of settings; `None` means [`ParamGroup::default_of`].
    pub group: Option<ParamGroup>,
}

impl Trainable {
    /// A trainable in the default group for its name and type.
    pub fn new(name: impl Into<String>) -> Trainable {
        Trainable {
            name: name.into(),
            group: None,
        }
    }

    /// Sets the group and returns the trainable, for chaining.
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
