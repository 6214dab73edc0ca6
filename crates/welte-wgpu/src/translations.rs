//! Every kernel in the languages of other systems' drivers, so that a change of a shader cannot break them unseen.

use crate::gpu::binding;
use crate::kernels::{Kernel, every, extended};
use naga::back::{hlsl, msl, spv};
use naga::valid::{Capabilities, ModuleInfo, ValidationFlags, Validator};

/// All that kernels need: `unpack2x16float`, which WebGPU guarantees.
const NEEDED: Capabilities = Capabilities::SHADER_FLOAT16_IN_FLOAT32;

/// What kernels with extensions need besides.
const EXTENDED: Capabilities = NEEDED
    .union(Capabilities::SHADER_FLOAT16)
    .union(Capabilities::SUBGROUP)
    .union(Capabilities::COOPERATIVE_MATRIX);

/// A kernel that Naga has read and checked, without any feature that an adapter may lack.
fn parsed(kernel: &Kernel) -> (naga::Module, ModuleInfo) {
    parsed_with(kernel, NEEDED)
}

fn parsed_with(kernel: &Kernel, abilities: Capabilities) -> (naga::Module, ModuleInfo) {
    let source = kernel.source();
    let module = naga::front::wgsl::parse_str(&source)
        .unwrap_or_else(|error| panic!("{}: {}", kernel.name, error.emit_to_string(&source)));
    let mut validator = Validator::new(ValidationFlags::all(), abilities);
    let info = validator.validate(&module);
    let info = info.unwrap_or_else(|error| panic!("{}: {error:?}", kernel.name));
    (module, info)
}

#[test]
fn every_kernel_is_plain_wgsl_with_few_buffers() {
    for kernel in every() {
        let (module, info) = parsed(&kernel);
        let main = &module.entry_points[0];
        assert_eq!(main.name, "main", "{}", kernel.name);
        let mut storage = 0;
        for (handle, global) in module.global_variables.iter() {
            let Some(place) = &global.binding else {
                continue;
            };
            assert!(place.binding < binding::COUNT, "{}", kernel.name);
            let is_used = !info.get_entry_point(0)[handle].is_empty();
            let is_storage = matches!(global.space, naga::AddressSpace::Storage { .. });
            storage += u32::from(is_used && is_storage);
        }
        assert!(storage <= binding::STORAGE, "{}: {storage}", kernel.name);
    }
}

/// For another implementation of WGSL (`dawn/check`): files in the folder that `WELTE_KERNELS` names.
#[test]
#[ignore = "writes files"]
fn every_kernel_is_written() {
    let folder = std::env::var_os("WELTE_KERNELS").expect("WELTE_KERNELS names a folder");
    for (number, kernel) in every().iter().enumerate() {
        let name = kernel
            .name
            .replace(|c: char| !c.is_ascii_alphanumeric(), "_");
        let path = std::path::Path::new(&folder).join(format!("{number:03}_{name}.wgsl"));
        std::fs::write(&path, kernel.source()).expect("the folder can be written");
    }
}

#[test]
fn every_kernel_becomes_metal() {
    let options = msl::Options {
        lang_version: (2, 4),
        fake_missing_bindings: true,
        ..msl::Options::default()
    };
    for kernel in every() {
        let (module, info) = parsed(&kernel);
        let pipeline = msl::PipelineOptions::default();
        let written = msl::write_string(&module, &info, &options, &pipeline);
        let (text, names) = written.unwrap_or_else(|error| panic!("{}: {error}", kernel.name));
        let entry = names.entry_point_names[0].as_ref();
        let entry = entry.unwrap_or_else(|error| panic!("{}: {error}", kernel.name));
        assert!(text.contains(&format!("kernel void {entry}(")), "{text}");
    }
}

#[test]
fn every_kernel_becomes_hlsl() {
    let options = hlsl::Options {
        shader_model: hlsl::ShaderModel::V6_0,
        fake_missing_bindings: true,
        ..hlsl::Options::default()
    };
    for kernel in every() {
        let (module, info) = parsed(&kernel);
        let mut text = String::new();
        let pipeline = hlsl::PipelineOptions::default();
        let written = hlsl::Writer::new(&mut text, &options, &pipeline).write(&module, &info, None);
        let written = written.unwrap_or_else(|error| panic!("{}: {error}", kernel.name));
        assert!(written.entry_point_names[0].is_ok(), "{}", kernel.name);
        assert!(text.contains("[numthreads("), "{text}");
    }
}

#[test]
fn every_kernel_becomes_spirv() {
    let plain = every().into_iter().map(|kernel| (kernel, NEEDED));
    let extended = extended().into_iter().map(|kernel| (kernel, EXTENDED));
    for (kernel, abilities) in plain.chain(extended) {
        let (module, info) = parsed_with(&kernel, abilities);
        let words = spv::write_vec(&module, &info, &spv::Options::default(), None);
        let words = words.unwrap_or_else(|error| panic!("{}: {error}", kernel.name));
        // The magic number, and more than a head.
        assert_eq!(words[0], 0x0723_0203, "{}", kernel.name);
        assert!(words.len() > 100, "{}", kernel.name);
    }
}
