# Builds `tercet` from this repository: `nix build "path:.?dir=packaging/nix"` in its root.
#
# It is checked for syntax only.
{
  description = "Tercet: a compiler and runtime for machine-learning models";

  inputs.nixpkgs.url = "nixpkgs/nixos-unstable";

  outputs = { self, nixpkgs }:
    let
      systems = [ "x86_64-linux" "aarch64-linux" "x86_64-darwin" "aarch64-darwin" ];
      forEach = build: nixpkgs.lib.genAttrs systems (system: build nixpkgs.legacyPackages.${system});
      root = ../..;
      manifest = builtins.fromTOML (builtins.readFile (root + "/Cargo.toml"));
      package = pkgs: pkgs.rustPlatform.buildRustPackage {
        pname = "tercet";
        version = manifest.workspace.package.version;
        src = root;
        cargoLock.lockFile = root + "/Cargo.lock";
        cargoBuildFlags = [ "--package" "tercet-cli" "--all-features" ];
        # `cargo xtask test` runs the tests; they need models and a Vulkan device.
        doCheck = false;
        nativeBuildInputs = pkgs.lib.optionals pkgs.stdenv.isLinux [ pkgs.makeWrapper ];
        # The loader of Vulkan is opened at run time.
        postInstall = pkgs.lib.optionalString pkgs.stdenv.isLinux ''
          wrapProgram $out/bin/tercet \
            --suffix LD_LIBRARY_PATH : ${pkgs.lib.makeLibraryPath [ pkgs.vulkan-loader ]}
        '';
        meta = {
          description = "Machine-learning models on any machine: no Python, no CUDA";
          license = with pkgs.lib.licenses; [ mit asl20 ];
          mainProgram = "tercet";
        };
      };
    in
    {
      packages = forEach (pkgs: { default = package pkgs; });
      apps = forEach (pkgs: {
        default = {
          type = "app";
          program = "${package pkgs}/bin/tercet";
        };
      });
    };
}
