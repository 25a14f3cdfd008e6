//! Pipelines of a device, each made once.

use std::collections::HashMap;
use std::num::NonZeroU64;
use std::sync::{Arc, Mutex};

use crate::call::{Code, Variant};
use crate::device::{Gpu, Trouble, lock};
use crate::trusted;

/// Pipelines kept although no executable uses them: about what the models of a process need.
const KEPT: usize = 1024;

/// A kernel made ready and the layout of its bind groups.
#[derive(Debug)]
pub(crate) struct Pipeline {
    pub(crate) pipeline: wgpu::ComputePipeline,
    pub(crate) layout: wgpu::BindGroupLayout,
}

/// What a shader does about mistakes of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Checks {
    /// It stays inside its bindings and ends.
    All,
    /// Nothing: it makes none.
    None,
}

/// What a pipeline and its layout depend on. The size of the block is the code's own declaration's.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    code: Code,
    /// The storage bindings and whether each is writable: WGSL says so itself, SPIR-V is the same for all
    /// buffers that its operands may share.
    storage: Vec<(u32, bool)>,
    checks: Checks,
}

impl Key {
    fn of(variant: &Variant, checks: Checks) -> Key {
        Key {
            code: variant.code.clone(),
            storage: variant.storage.clone(),
            checks,
        }
    }
}

/// Pipelines by what they depend on.
#[derive(Debug, Default)]
pub(crate) struct Pipelines(Mutex<HashMap<Key, Arc<Pipeline>>>);

impl Pipelines {
    /// The pipeline of a kernel.
    ///
    /// # Errors
    /// What wgpu says of it.
    pub(crate) fn get(
        &self,
        gpu: &Gpu,
        variant: &Variant,
        checks: Checks,
    ) -> Result<Arc<Pipeline>, Trouble> {
        let key = Key::of(variant, checks);
        if let Some(found) = lock(&self.0).get(&key) {
            return Ok(Arc::clone(found));
        }
        // Two threads may make the same pipeline; one is then dropped.
        let made = Arc::new(gpu.scoped(|| make(&gpu.device, variant, checks))?);
        let mut map = lock(&self.0);
        if map.len() >= KEPT {
            map.retain(|_, p| Arc::strong_count(p) > 1);
        }
        let kept = map.entry(key).or_insert(made);
        Ok(Arc::clone(kept))
    }
}

fn make(device: &wgpu::Device, variant: &Variant, checks: Checks) -> Pipeline {
    let label = Some(variant.name.as_str());
    let checks = match variant.code {
        Code::Checked { .. } => Checks::All,
        Code::Wgsl(_) | Code::SpirV(_) => checks,
    };
    let of_text = |text: &str| {
        let source = wgpu::ShaderModuleDescriptor {
            label,
            source: wgpu::ShaderSource::Wgsl(text.into()),
        };
        match checks {
            Checks::All => device.create_shader_module(source),
            Checks::None => trusted::shader_module(device, source),
        }
    };
    let (module, entry_point) = match &variant.code {
        Code::Wgsl(text) => (of_text(text), "main"),
        Code::Checked { text, entry } => (of_text(text), &**entry),
        Code::SpirV(words) => (trusted::spirv_module(device, label, words), "main"),
    };
    let block = NonZeroU64::new(variant.block_bytes.into());
    let block = block.map(|bytes| entry(0, wgpu::BufferBindingType::Uniform, Some(bytes)));
    // Of storage wgpu knows the least size from the shader: a word or a vector of them.
    let storage = variant.storage.iter().map(|&(binding, writable)| {
        let read_only = !writable;
        entry(
            binding,
            wgpu::BufferBindingType::Storage { read_only },
            None,
        )
    });
    let entries: Vec<_> = block.into_iter().chain(storage).collect();
    let layout = device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor {
        label,
        entries: &entries,
    });
    let pipeline_layout = device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
        label,
        bind_group_layouts: &[Some(&layout)],
        immediate_size: 0,
    });
    let pipeline = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
        label,
        layout: Some(&pipeline_layout),
        module: &module,
        entry_point: Some(entry_point),
        compilation_options: wgpu::PipelineCompilationOptions {
            zero_initialize_workgroup_memory: checks == Checks::All,
            ..wgpu::PipelineCompilationOptions::default()
        },
        cache: None,
    });
    Pipeline { pipeline, layout }
}

fn entry(
    binding: u32,
    ty: wgpu::BufferBindingType,
    min_binding_size: Option<NonZeroU64>,
) -> wgpu::BindGroupLayoutEntry {
    wgpu::BindGroupLayoutEntry {
        binding,
        visibility: wgpu::ShaderStages::COMPUTE,
        ty: wgpu::BindingType::Buffer {
            ty,
            has_dynamic_offset: false,
            min_binding_size,
        },
        count: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_module_has_a_pipeline_for_each_way_its_buffers_are_bound() {
        let variant = |writable| Variant {
            name: "product".to_string(),
            code: Code::SpirV([1, 2, 3].into()),
            block_bytes: 16,
            storage: vec![(1, writable), (2, true)],
        };
        let key = |writable| Key::of(&variant(writable), Checks::None);
        assert_ne!(key(false), key(true));
        assert_eq!(key(true), key(true));
    }
}
