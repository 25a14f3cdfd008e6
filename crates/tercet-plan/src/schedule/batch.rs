//! Batches: equal maps over several operands in one dispatch (horizontal fusion).
//!
//! Steps between two barriers are independent. Those of one kernel, such as the same chain of
//! elementwise functions over several inputs, become one dispatch. The grid's third axis selects
//! the part; the kernel's arrays and parameters are those of the part.
//!
//! ```text
//! fn main(..) { part = group.z; .. y0_set(i, f(x0_at(i))); .. }
//! fn x0_at(at: u32) -> u32 { switch part { case 0u { return x0_0[at]; } default { .. } } }
//! ```

use std::collections::HashMap;

use tercet_ir::Bindings;
use tercet_ir::random::RngState;

use super::groups::GroupedSteps;
use crate::caps::DeviceCaps;
use crate::emit::ProgramBuilder;
use tercet_program::{ArgAccess, KernelInstance, KernelSource};
use tercet_program::{KernelDispatch, KernelId, ProgramStep, StepOp};
use tercet_program::{SymInt, sym_value};

/// Maximum number of parts of a batch.
const MAX_PARTS: usize = 64;

/// Maximum number of workgroups of a part. Larger parts occupy the device alone.
const MAX_GROUPS: i64 = 1024;

/// Maximum size of the parameters of all parts in bytes; every device can bind that many.
const MAX_BLOCK_BYTES: u32 = 16 << 10;

/// Merges equal maps of each group of steps. `symbols` are the upper bounds of the symbols.
pub(super) fn merge(
    steps: GroupedSteps,
    draft: &mut ProgramBuilder,
    symbols: &Bindings,
    caps: &DeviceCaps,
) -> GroupedSteps {
    let mut values = Vec::new();
    let known = draft
        .tape
        .eval(symbols, RngState::default(), &[], &mut values);
    if known.is_err() {
        return steps;
    }
    let mut groups: HashMap<(usize, KernelId), Vec<usize>> = HashMap::new();
    for (at, (step, group)) in steps.list.iter().zip(&steps.groups).enumerate() {
        let StepOp::Dispatch(dispatch) = &step.work else {
            continue;
        };
        let size = |axis: usize| sym_value(dispatch.grid[axis], &values);
        let fits = size(0).saturating_mul(size(1)) <= MAX_GROUPS && size(2) == 1;
        if fits && is_map(&draft.kernels[dispatch.kernel.0 as usize]) {
            groups
                .entry((*group, dispatch.kernel))
                .or_default()
                .push(at);
        }
    }
    let mut merged: HashMap<usize, ProgramStep> = HashMap::new();
    let mut dropped = vec![false; steps.list.len()];
    let mut alike: Vec<_> = groups
        .into_iter()
        .filter(|(_, all)| all.len() > 1)
        .collect();
    alike.sort_by_key(|(_, all)| all[0]);
    for ((_, kernel), all) in alike {
        let own = &draft.kernels[kernel.0 as usize];
        let by_args = caps.max_batch_buffers as usize / own.args.len().max(1);
        let by_block = (MAX_BLOCK_BYTES / own.block_bytes.max(1)) as usize;
        // A device may not bind the buffers of one part.
        let most = MAX_PARTS.min(by_args).min(by_block).max(1);
        let mut rest = all;
        while let Some(&first) = rest.first() {
            let branches = &steps.list[first].branches;
            let same = rest
                .iter()
                .filter(|at| steps.list[**at].branches == *branches);
            let chosen: Vec<usize> = same.take(most).copied().collect();
            rest.retain(|at| !chosen.contains(at));
            if chosen.len() < 2 {
                continue;
            }
            let parts: Vec<&ProgramStep> = chosen.iter().map(|at| &steps.list[*at]).collect();
            let Some(step) = batch(&parts, kernel, draft, caps) else {
                break;
            };
            merged.insert(first, step);
            chosen[1..].iter().for_each(|at| dropped[*at] = true);
        }
    }
    let mut done = GroupedSteps::default();
    for (at, (step, group)) in steps.list.into_iter().zip(steps.groups).enumerate() {
        if dropped[at] {
            continue;
        }
        let barrier = step.barrier;
        let step = merged.remove(&at).unwrap_or(step);
        done.list.push(ProgramStep { barrier, ..step });
        done.groups.push(group);
    }
    done
}

/// True for a kernel that `lowerings/map/codegen.rs` generated.
fn is_map(kernel: &KernelInstance) -> bool {
    let KernelSource::Wgsl(text) = &kernel.source else {
        return false;
    };
    kernel.name.starts_with("map ") && text.contains("struct Params { w: array<vec4<u32>, ")
}

/// Merges the program steps `parts` into a single step; `None` if the source of their kernel has an
/// unexpected form.
fn batch(
    parts: &[&ProgramStep],
    kernel: KernelId,
    draft: &mut ProgramBuilder,
    caps: &DeviceCaps,
) -> Option<ProgramStep> {
    let dispatches: Vec<&KernelDispatch> = parts
        .iter()
        .filter_map(|step| match &step.work {
            StepOp::Dispatch(dispatch) => Some(dispatch),
            StepOp::Copy { .. } | StepOp::Fill { .. } => None,
        })
        .collect();
    let own = &draft.kernels[kernel.0 as usize];
    let KernelSource::Wgsl(text) = &own.source else {
        return None;
    };
    let count = dispatches.len();
    let instance = KernelInstance {
        name: format!("{} x{count}", own.name),
        source: KernelSource::Wgsl(batched_text(text, count)?.into()),
        args: own.args.repeat(count),
        block_bytes: own.block_bytes * count as u32,
    };
    let words = own.block_bytes as usize / 4;
    let mut block = Vec::with_capacity(words * count);
    for dispatch in &dispatches {
        let first = dispatch.block as usize;
        block.extend_from_slice(&draft.params[first..first + words]);
    }
    let mut grid = dispatches[0].grid;
    for dispatch in &dispatches[1..] {
        for (all, own) in grid.iter_mut().zip(dispatch.grid).take(2) {
            if *all != own {
                *all = draft.tape.max(*all, own);
            }
        }
    }
    grid[2] = SymInt::Const(count as i64);
    let args = dispatches
        .iter()
        .flat_map(|d| d.args.iter().copied())
        .collect();
    let found = draft.kernels.iter().position(|known| *known == instance);
    let kernel = found.unwrap_or_else(|| {
        draft.kernels.push(instance);
        draft.kernels.len() - 1
    });
    let block = draft.append_block(&block, caps);
    Some(ProgramStep {
        work: StepOp::Dispatch(KernelDispatch {
            kernel: KernelId(kernel as u32),
            args,
            block,
            grid,
        }),
        ..parts[0].clone()
    })
}

/// An array that the kernel binds.
pub struct BoundArray<'t> {
    /// Name of the array.
    pub name: &'t str,
    /// Type of its elements.
    pub element: &'t str,
    /// How the kernel accesses it.
    pub access: ArgAccess,
}

/// The source of a map for this number of parts; `None` if it has an unexpected form.
pub fn batched_text(text: &str, count: usize) -> Option<String> {
    let (params, rest) = text.split_once("struct Params { w: array<vec4<u32>, ")?;
    let (rows, rest) = rest.split_once("> }\n")?;
    let rows: usize = rows.parse().ok()?;
    let (declared, body) = rest
        .split_once("\n")
        .filter(|(line, _)| line.contains("var<uniform> p"))?;
    let mut arrays = Vec::new();
    let mut body = body;
    while let Some((line, after)) = body.split_once('\n')
        && line.contains("var<storage, ")
    {
        arrays.push(bound_array(line)?);
        body = after;
    }
    let mut code = body.to_string();
    for array in &arrays {
        code = with_calls(&code, array)?;
    }
    code = with_parameters(&code, rows)?;
    let (head, main) = code.split_once("fn main(")?;
    let (signature, main) = main.split_once(") {\n")?;
    let mut all = format!(
        "{params}struct Params {{ w: array<vec4<u32>, {}> }}\n{declared}\n",
        rows * count
    );
    let mut binding = 1;
    for part in 0..count {
        for array in &arrays {
            let access = match array.access {
                ArgAccess::Read => "read",
                ArgAccess::Write => "read_write",
            };
            all += &format!(
                "@group(0) @binding({binding}) var<storage, {access}> {}_{part}: array<{}>;\n",
                array.name, array.element
            );
            binding += 1;
        }
    }
    all += "\n// The part that the workgroup computes.\nvar<private> part: u32;\n\n";
    for array in &arrays {
        all += &accessors(array, count, &code);
    }
    Some(all + head + "fn main(" + signature + ") {\n    part = group.z;\n" + main)
}

/// Reads a declaration such as `@group(0) @binding(1) var<storage, read> x0: array<u32>;`.
fn bound_array(line: &str) -> Option<BoundArray<'_>> {
    let (_, rest) = line.split_once("var<storage, ")?;
    let (access, rest) = rest.split_once("> ")?;
    let (name, rest) = rest.split_once(": array<")?;
    Some(BoundArray {
        name,
        element: rest.strip_suffix(">;")?,
        access: match access {
            "read" => ArgAccess::Read,
            _ => ArgAccess::Write,
        },
    })
}

/// WGSL functions that read and write an element of the part's array, as far as `code` calls them.
fn accessors(array: &BoundArray<'_>, count: usize, code: &str) -> String {
    let BoundArray { name, element, .. } = array;
    let cases = |statement: &dyn Fn(usize) -> String| {
        let case = |part: usize| match part + 1 == count {
            true => format!("        default: {{ {} }}\n", statement(part)),
            false => format!("        case {part}u: {{ {} }}\n", statement(part)),
        };
        (0..count).map(case).collect::<String>()
    };
    let mut text = String::new();
    if code.contains(&format!("{name}_at(")) {
        text += &format!(
            "fn {name}_at(at: u32) -> {element} {{\n    switch part {{\n{}    }}\n}}\n\n",
            cases(&|part| format!("return {name}_{part}[at];"))
        );
    }
    if code.contains(&format!("{name}_set(")) {
        text += &format!(
            "fn {name}_set(at: u32, v: {element}) {{\n    switch part {{\n{}    }}\n}}\n\n",
            cases(&|part| format!("{name}_{part}[at] = v;"))
        );
    }
    text
}

/// Replaces accesses `x0[AT]` of an array by calls `x0_at(AT)`, and `y0[AT] = V;` by `y0_set(AT,
/// V);`. Fields of structs, such as `raw.x0[1]`, do not change.
pub fn with_calls(code: &str, array: &BoundArray<'_>) -> Option<String> {
    let pattern = format!("{}[", array.name);
    let (mut done, mut rest) = (String::with_capacity(code.len()), code);
    while let Some(at) = rest.find(&pattern) {
        let before = rest[..at].chars().next_back();
        let is_own = !before.is_some_and(|c| c == '.' || c == '_' || c.is_ascii_alphanumeric());
        let open = at + pattern.len();
        if !is_own {
            done += &rest[..open];
            rest = &rest[open..];
            continue;
        }
        let index = enclosed(&rest[open..], ']')?;
        let (index, after) = (&rest[open..open + index], &rest[open + index + 1..]);
        done += &rest[..at];
        let assigned = after.strip_prefix(" = ");
        // The index may read the same array.
        let index = with_calls(index, array)?;
        match assigned {
            Some(after) => {
                let end = enclosed(after, ';')?;
                let value = with_calls(&after[..end], array)?;
                done += &format!("{}_set({index}, {value})", array.name);
                rest = &after[end..];
            }
            None => {
                done += &format!("{}_at({index})", array.name);
                rest = after;
            }
        }
    }
    Some(done + rest)
}

/// The position of the first `end` outside of nested brackets.
fn enclosed(text: &str, end: char) -> Option<usize> {
    let mut depth = 0usize;
    for (at, c) in text.char_indices() {
        match c {
            _ if c == end && depth == 0 => return Some(at),
            '(' | '[' => depth += 1,
            ')' | ']' => depth = depth.checked_sub(1)?,
            _ => {}
        }
    }
    None
}

/// Replaces parameter words `p.w[K]` by those of the part, `p.w[part * ROWS + K]`.
pub fn with_parameters(code: &str, rows: usize) -> Option<String> {
    let (mut done, mut rest) = (String::with_capacity(code.len()), code);
    while let Some((before, after)) = rest.split_once("p.w[") {
        let (at, after) = after.split_once(']')?;
        let at: usize = at.parse().ok()?;
        done += &format!("{before}p.w[part * {rows}u + {at}u]");
        rest = after;
    }
    Some(done + rest)
}
