//! The wheels of the Python package `onnx` and their test cases.
//!
//! Wheels up to 1.22 contain the cases as files, in the cache folders `onnx-cases-VERSION`. From 1.23
//! on, a wheel contains a Python script that generates the cases; it runs in a virtual environment.

use std::fs;
use std::path::{Path, PathBuf};

use crate::error::{self, XtaskError};
use crate::fetch::{self, PythonInterpreter, PythonPackage};
use crate::process;

/// A version of the package with the folder of its cases.
pub(super) struct OnnxWheelCases {
    pub(super) version: &'static str,
    pub(super) folder: PathBuf,
}

macro_rules! wheel {
    ($version:literal, $python:literal, $wheel:literal, $sha256:literal, $case:literal) => {
        PythonPackage {
            name: concat!("onnx-cases-", $version),
            requirement: concat!("onnx==", $version),
            options: &[
                "--only-binary=:all:",
                "--platform=manylinux1_x86_64",
                "--platform=manylinux2010_x86_64",
                "--platform=manylinux2014_x86_64",
                "--platform=manylinux_2_17_x86_64",
                "--platform=manylinux_2_28_x86_64",
                concat!("--python-version=", $python),
            ],
            wheel: $wheel,
            wheel_sha256: $sha256,
            inside: "onnx/backend/test/data",
            gzipped: &[],
            files: &[("node/test_abs/model.onnx", $case)],
        }
    };
}

/// The versions before 1.22.0, which [`fetch::onnx`] has, with the Python version of the wheel, its
/// SHA-256, and that of a case.
const WHEELS: &[(&str, PythonPackage)] = &[
    (
        "1.5.0",
        wheel!(
            "1.5.0",
            "3.7",
            "onnx-1.5.0-cp37-cp37m-manylinux1_x86_64.whl",
            "37ace5a7a0c47d2a79edd83861eff17f6e463eafe96c8d930624bc51ca1023f6",
            "bf114fc396e4677434f7b1da225099bcfeee45d45e7c441bfb136de590eafaf7"
        ),
    ),
    (
        "1.6.0",
        wheel!(
            "1.6.0",
            "3.7",
            "onnx-1.6.0-cp37-cp37m-manylinux1_x86_64.whl",
            "9b32e04abe02cba4c4edb6c3cc15db917e734521ca8631e46bea3971a142d709",
            "bf114fc396e4677434f7b1da225099bcfeee45d45e7c441bfb136de590eafaf7"
        ),
    ),
    (
        "1.7.0",
        wheel!(
            "1.7.0",
            "3.7",
            "onnx-1.7.0-cp37-cp37m-manylinux1_x86_64.whl",
            "303f5028c1d3b9feaa29890c5cfc78e9424bb143e9bfe04abc4948cbe44183d4",
            "bf114fc396e4677434f7b1da225099bcfeee45d45e7c441bfb136de590eafaf7"
        ),
    ),
    (
        "1.8.0",
        wheel!(
            "1.8.0",
            "3.7",
            "onnx-1.8.0-cp37-cp37m-manylinux2010_x86_64.whl",
            "ebe1f634e3264d105ee5c54b0c0337190687a1c7f3d38a6dcf8d48c446370053",
            "bf114fc396e4677434f7b1da225099bcfeee45d45e7c441bfb136de590eafaf7"
        ),
    ),
    (
        "1.8.1",
        wheel!(
            "1.8.1",
            "3.7",
            "onnx-1.8.1-cp37-cp37m-manylinux2010_x86_64.whl",
            "763407eb4cbb92e34e3287220969a02567a235cb0e17923eafa8f78c7035a689",
            "bf114fc396e4677434f7b1da225099bcfeee45d45e7c441bfb136de590eafaf7"
        ),
    ),
    (
        "1.9.0",
        wheel!(
            "1.9.0",
            "3.7",
            "onnx-1.9.0-cp37-cp37m-manylinux2010_x86_64.whl",
            "a5fe019aa33098727d04f4598ebe6edca26a1008092761225acd732b2f62354b",
            "bf114fc396e4677434f7b1da225099bcfeee45d45e7c441bfb136de590eafaf7"
        ),
    ),
    (
        "1.10.0",
        wheel!(
            "1.10.0",
            "3.9",
            "onnx-1.10.0-cp39-cp39-manylinux_2_12_x86_64.manylinux2010_x86_64.whl",
            "4cf97cabe31c68ca6139d2752f2d1af5bb6da1a7b798058994032eebf9fbea5b",
            "bf114fc396e4677434f7b1da225099bcfeee45d45e7c441bfb136de590eafaf7"
        ),
    ),
    (
        "1.10.1",
        wheel!(
            "1.10.1",
            "3.9",
            "onnx-1.10.1-cp39-cp39-manylinux_2_12_x86_64.manylinux2010_x86_64.whl",
            "aa81aaf4b879ba9f3ea0f30f4bf29c36f828c504b7faeb47f23adc0038d0a226",
            "bf114fc396e4677434f7b1da225099bcfeee45d45e7c441bfb136de590eafaf7"
        ),
    ),
    (
        "1.10.2",
        wheel!(
            "1.10.2",
            "3.9",
            "onnx-1.10.2-cp39-cp39-manylinux_2_12_x86_64.manylinux2010_x86_64.whl",
            "526de93b57dd65b136bec85d5b4c6fa4455d6d817bb319b54797d29111b9c407",
            "bf114fc396e4677434f7b1da225099bcfeee45d45e7c441bfb136de590eafaf7"
        ),
    ),
    (
        "1.11.0",
        wheel!(
            "1.11.0",
            "3.9",
            "onnx-1.11.0-cp39-cp39-manylinux_2_12_x86_64.manylinux2010_x86_64.whl",
            "67c6d2654c1c203e5c839a47900b51f588fd0de71bbd497fb193d30a0b3ec1e9",
            "bf114fc396e4677434f7b1da225099bcfeee45d45e7c441bfb136de590eafaf7"
        ),
    ),
    (
        "1.12.0",
        wheel!(
            "1.12.0",
            "3.9",
            "onnx-1.12.0-cp39-cp39-manylinux_2_17_x86_64.manylinux2014_x86_64.whl",
            "c7a9b3ea02c30efc1d2662337e280266aca491a8e86be0d8a657f874b7cccd1e",
            "87e8c85a3c5ac0401781fd1327a04a8eec7b8fac8df7e813b2bed5134403905a"
        ),
    ),
    (
        "1.13.0",
        wheel!(
            "1.13.0",
            "3.11",
            "onnx-1.13.0-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl",
            "8faef7ee6e2012ad1ff13ffe248809218ac4ea7040bd62a7e0740978feffe926",
            "87e8c85a3c5ac0401781fd1327a04a8eec7b8fac8df7e813b2bed5134403905a"
        ),
    ),
    (
        "1.13.1",
        wheel!(
            "1.13.1",
            "3.11",
            "onnx-1.13.1-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl",
            "fb7951ed7c13383223bc57c4aacd2c07f3b35c8e6b3959c0e56b19f4bf22d193",
            "87e8c85a3c5ac0401781fd1327a04a8eec7b8fac8df7e813b2bed5134403905a"
        ),
    ),
    (
        "1.14.0",
        wheel!(
            "1.14.0",
            "3.11",
            "onnx-1.14.0-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl",
            "2fab7e6e1c2d9d6479edad8e9088cdfd87ea293cb08f31565adabfb33c6e5789",
            "87e8c85a3c5ac0401781fd1327a04a8eec7b8fac8df7e813b2bed5134403905a"
        ),
    ),
    (
        "1.14.1",
        wheel!(
            "1.14.1",
            "3.11",
            "onnx-1.14.1-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl",
            "4b9cd91b85cfbb0d6478f4a1a0aee4d95cf8839adc48c69130a0cf8452f21db4",
            "87e8c85a3c5ac0401781fd1327a04a8eec7b8fac8df7e813b2bed5134403905a"
        ),
    ),
    (
        "1.15.0",
        wheel!(
            "1.15.0",
            "3.11",
            "onnx-1.15.0-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl",
            "d8a7c94d2ebead8f739fdb70d1ce5a71726f4e17b3e5b8ad64455ea1b2801a85",
            "87e8c85a3c5ac0401781fd1327a04a8eec7b8fac8df7e813b2bed5134403905a"
        ),
    ),
    (
        "1.16.0",
        wheel!(
            "1.16.0",
            "3.11",
            "onnx-1.16.0-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl",
            "0e60ca76ac24b65c25860d0f2d2cdd96d6320d062a01dd8ce87c5743603789b8",
            "87e8c85a3c5ac0401781fd1327a04a8eec7b8fac8df7e813b2bed5134403905a"
        ),
    ),
    (
        "1.16.1",
        wheel!(
            "1.16.1",
            "3.11",
            "onnx-1.16.1-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl",
            "45cf20421aeac03872bea5fd6ebf92abe15c4d1461a2572eb839add5059e2a09",
            "87e8c85a3c5ac0401781fd1327a04a8eec7b8fac8df7e813b2bed5134403905a"
        ),
    ),
    (
        "1.16.2",
        wheel!(
            "1.16.2",
            "3.11",
            "onnx-1.16.2-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl",
            "7b98aa9733bd4b781eb931d33b4078ff2837e7d68062460726d6dd011f332bd4",
            "87e8c85a3c5ac0401781fd1327a04a8eec7b8fac8df7e813b2bed5134403905a"
        ),
    ),
    (
        "1.17.0",
        wheel!(
            "1.17.0",
            "3.12",
            "onnx-1.17.0-cp312-cp312-manylinux_2_17_x86_64.manylinux2014_x86_64.whl",
            "4f3fb5cc4e2898ac5312a7dc03a65133dd2abf9a5e520e69afb880a7251ec97a",
            "87e8c85a3c5ac0401781fd1327a04a8eec7b8fac8df7e813b2bed5134403905a"
        ),
    ),
    (
        "1.18.0",
        wheel!(
            "1.18.0",
            "3.12",
            "onnx-1.18.0-cp312-cp312-manylinux_2_17_x86_64.manylinux2014_x86_64.whl",
            "99afac90b4cdb1471432203c3c1f74e16549c526df27056d39f41a9a47cfb4af",
            "87e8c85a3c5ac0401781fd1327a04a8eec7b8fac8df7e813b2bed5134403905a"
        ),
    ),
    (
        "1.19.0",
        wheel!(
            "1.19.0",
            "3.12",
            "onnx-1.19.0-cp312-cp312-manylinux2014_x86_64.manylinux_2_17_x86_64.whl",
            "1ae475c85c89bc4d1f16571006fd21a3e7c0e258dd2c091f6e8aafb083d1ed9b",
            "87e8c85a3c5ac0401781fd1327a04a8eec7b8fac8df7e813b2bed5134403905a"
        ),
    ),
    (
        "1.19.1",
        wheel!(
            "1.19.1",
            "3.12",
            "onnx-1.19.1-cp312-cp312-manylinux2014_x86_64.manylinux_2_17_x86_64.whl",
            "485d3674d50d789e0ee72fa6f6e174ab81cb14c772d594f992141bd744729d8a",
            "87e8c85a3c5ac0401781fd1327a04a8eec7b8fac8df7e813b2bed5134403905a"
        ),
    ),
    (
        "1.20.0",
        wheel!(
            "1.20.0",
            "3.12",
            "onnx-1.20.0-cp312-abi3-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl",
            "02e0d72ab09a983fce46686b155a5049898558d9f3bc6e8515120d6c40666318",
            "87e8c85a3c5ac0401781fd1327a04a8eec7b8fac8df7e813b2bed5134403905a"
        ),
    ),
    (
        "1.20.1",
        wheel!(
            "1.20.1",
            "3.12",
            "onnx-1.20.1-cp312-abi3-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl",
            "9336b6b8e6efcf5c490a845f6afd7e041c89a56199aeda384ed7d58fb953b080",
            "87e8c85a3c5ac0401781fd1327a04a8eec7b8fac8df7e813b2bed5134403905a"
        ),
    ),
    (
        "1.21.0",
        wheel!(
            "1.21.0",
            "3.12",
            "onnx-1.21.0-cp312-abi3-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl",
            "a9261bd580fb8548c9c37b3c6750387eb8f21ea43c63880d37b2c622e1684285",
            "87e8c85a3c5ac0401781fd1327a04a8eec7b8fac8df7e813b2bed5134403905a"
        ),
    ),
];

/// The versions that generate their cases.
const GENERATED: [&str; 3] = ["1.23.0", "1.23.1", "1.23.2"];

const GENERATE: &str = include_str!("generate.py");

/// The cases of all versions, newest first.
pub(super) fn all(cache: &Path) -> Result<Vec<OnnxWheelCases>, XtaskError> {
    let mut found = Vec::new();
    for version in GENERATED {
        let folder = generated(cache, version)?;
        found.push(OnnxWheelCases { version, folder });
    }
    found.reverse();
    found.push(OnnxWheelCases {
        version: "1.22.0",
        folder: fetch::onnx(cache)?,
    });
    for (version, package) in WHEELS.iter().rev() {
        let folder = fetch::fetch(package, cache)?;
        found.push(OnnxWheelCases { version, folder });
    }
    Ok(found)
}

/// Generates the cases of a version, if its folder is missing.
fn generated(cache: &Path, version: &str) -> Result<PathBuf, XtaskError> {
    const PURPOSE: &str = "generate the test cases of ONNX";
    let target = cache.join(format!("onnx-cases-{version}"));
    if target.join("node/test_abs/model.onnx").exists() {
        return Ok(target);
    }
    let python = PythonInterpreter::find(PURPOSE)?;
    let python = python.venv(&cache.join(format!("onnx-{version}")), PURPOSE)?;
    let onnx = format!("onnx=={version}");
    process::run(
        python
            .command()
            .args(["-m", "pip", "install", "--quiet", &onnx, "pillow"]),
    )?;
    let partial = cache.join(format!("onnx-cases-{version}.partial"));
    fetch::remove_dir(&partial)?;
    process::run(
        python
            .command()
            .args(["-W", "ignore", "-c", GENERATE])
            .arg(&partial),
    )?;
    fetch::remove_dir(&target)?;
    fs::rename(&partial, &target).map_err(error::file("create", &target))?;
    Ok(target)
}
