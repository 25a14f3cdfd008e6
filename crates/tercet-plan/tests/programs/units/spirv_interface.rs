//! The interfaces of SPIR-V modules, which their Rust declarations must match.

use std::collections::HashMap;

use tercet_plan::{ArgAccess, FAMILIES, FieldType, KernelCode, KernelDef, kernels};

/// The interface of a SPIR-V module: its specialization constants, uniform block and storage
/// bindings.
#[derive(Default)]
struct SpirvInterface {
    names: HashMap<u32, String>,
    members: HashMap<(u32, u32), String>,
    /// By (decorated id, decoration): the operand of the decoration.
    decorations: HashMap<(u32, u32), u32>,
    member_decorations: HashMap<(u32, u32, u32), u32>,
    pointees: HashMap<u32, u32>,
    structs: HashMap<u32, Vec<u32>>,
    unsigned: Vec<u32>,
    floats: Vec<u32>,
    /// Variables of the module as (id, pointer type, storage class).
    variables: Vec<(u32, u32, u32)>,
}

const SPEC_ID: u32 = 1;
const NON_WRITABLE: u32 = 24;
const BINDING: u32 = 33;
const OFFSET: u32 = 35;
const UNIFORM: u32 = 2;
const STORAGE_BUFFER: u32 = 12;

impl SpirvInterface {
    fn read(words: &[u32]) -> SpirvInterface {
        assert_eq!(words[0], 0x0723_0203);
        let mut module = SpirvInterface::default();
        let mut at = 5;
        while at < words.len() {
            let len = (words[at] >> 16) as usize;
            module.instruction(words[at] & 0xffff, &words[at + 1..at + len]);
            at += len;
        }
        module
    }

    fn instruction(&mut self, opcode: u32, w: &[u32]) {
        match opcode {
            5 => drop(self.names.insert(w[0], text(&w[1..]))),
            6 => drop(self.members.insert((w[0], w[1]), text(&w[2..]))),
            21 if w[1..] == [32, 0] => self.unsigned.push(w[0]),
            22 if w[1..] == [32] => self.floats.push(w[0]),
            30 => drop(self.structs.insert(w[0], w[1..].to_vec())),
            32 => drop(self.pointees.insert(w[0], w[2])),
            59 => self.variables.push((w[1], w[0], w[2])),
            71 => {
                let operand = w.get(2).copied().unwrap_or(0);
                self.decorations.insert((w[0], w[1]), operand);
            }
            72 => {
                let operand = w.get(3).copied().unwrap_or(0);
                self.member_decorations.insert((w[0], w[1], w[2]), operand);
            }
            _ => {}
        }
    }

    /// Names of the module's specialization constants, ordered by their constant ids.
    fn constants(&self) -> Vec<&str> {
        let mut found: Vec<(u32, &str)> = self
            .decorations
            .iter()
            .filter(|((_, decoration), _)| *decoration == SPEC_ID)
            .filter_map(|((id, _), at)| Some((*at, self.names.get(id)?.as_str())))
            .filter(|(_, name)| !name.is_empty())
            .collect();
        found.sort_unstable();
        found.into_iter().map(|(_, name)| name).collect()
    }

    /// Name, type and offset of the fields of the uniform block at binding 0: `u32` or `f32`.
    fn fields(&self) -> Vec<(String, FieldType, u32)> {
        let (id, pointer, _) = self.variables.iter().find(|v| v.2 == UNIFORM).unwrap();
        assert_eq!(self.decorations[&(*id, BINDING)], 0);
        let block = self.pointees[pointer];
        let types = &self.structs[&block];
        (0..types.len() as u32)
            .map(|at| {
                let name = self.members[&(block, at)].clone();
                let id = types[at as usize];
                let ty = match self.floats.contains(&id) {
                    true => FieldType::F32,
                    false => FieldType::U32,
                };
                assert!(
                    self.floats.contains(&id) || self.unsigned.contains(&id),
                    "{name}"
                );
                (name, ty, self.member_decorations[&(block, at, OFFSET)])
            })
            .collect()
    }

    /// Access modes of the module's storage buffers, from binding 1 on.
    fn args(&self) -> Vec<ArgAccess> {
        let mut found: Vec<(u32, ArgAccess)> = Vec::new();
        for (id, pointer, _) in self.variables.iter().filter(|v| v.2 == STORAGE_BUFFER) {
            let block = self.pointees[pointer];
            let read = self.decorations.contains_key(&(*id, NON_WRITABLE))
                || self
                    .member_decorations
                    .contains_key(&(block, 0, NON_WRITABLE));
            let access = if read {
                ArgAccess::Read
            } else {
                ArgAccess::Write
            };
            let entry = (self.decorations[&(*id, BINDING)], access);
            if !found.contains(&entry) {
                found.push(entry);
            }
        }
        found.sort_by_key(|(binding, _)| *binding);
        let bindings: Vec<u32> = found.iter().map(|(binding, _)| *binding).collect();
        assert_eq!(bindings, (1..=found.len() as u32).collect::<Vec<_>>());
        found.into_iter().map(|(_, access)| access).collect()
    }
}

fn text(words: &[u32]) -> String {
    let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    let end = bytes.iter().position(|b| *b == 0).unwrap();
    String::from_utf8(bytes[..end].to_vec()).unwrap()
}

/// Fails if the interface of a module differs from its Rust declaration.
pub(crate) fn agrees(def: &KernelDef) {
    let KernelCode::SpirV(module) = def.code else {
        panic!("{} is SPIR-V", def.name)
    };
    let module = SpirvInterface::read(&module.words().unwrap());
    let fields: Vec<_> = def
        .fields
        .iter()
        .map(|f| (f.name.to_string(), f.ty, f.offset_bytes))
        .collect();
    assert_eq!(module.fields(), fields, "{}", def.name);
    assert_eq!(module.args(), def.args, "{}", def.name);
    assert_eq!(module.constants(), def.consts, "{}", def.name);
}

/// Fails if the interface of the module of one of these kernels differs from its Rust declaration.
pub(crate) fn all_agree(names: &[&str]) {
    for name in names {
        let found = kernels().find(|def| def.name == *name);
        agrees(found.unwrap_or_else(|| panic!("no kernel `{name}`")));
    }
}

/// Like [`all_agree`], for all kernels of a lowering.
pub(crate) fn all_of_lowering_agree(name: &str) {
    let found = FAMILIES.iter().find(|lowering| lowering.name == name);
    let lowering = found.unwrap_or_else(|| panic!("no lowering `{name}`"));
    lowering.kernels.iter().copied().for_each(agrees);
}
