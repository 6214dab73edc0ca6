{
  description = "Welte, an LLM inference engine";
  inputs.nixpkgs.url = "github:NixOS/nixpkgs/nixos-unstable";

  # nix run 'git+file:.?dir=packaging/nix'
  outputs = { self, nixpkgs }:
    let
      systems = [ "x86_64-linux" "aarch64-linux" "aarch64-darwin" ];
      each = make: nixpkgs.lib.genAttrs systems (system: make nixpkgs.legacyPackages.${system});
    in
    {
      packages = each (pkgs: {
        default = pkgs.rustPlatform.buildRustPackage {
          pname = "welte";
          version = (builtins.fromTOML (builtins.readFile ../../Cargo.toml)).workspace.package.version;
          src = ../..;
          cargoLock.lockFile = ../../Cargo.lock;
          cargoBuildFlags = [ "--package" "welte-cli" ];
          # The tests of the whole workspace take an hour.
          doCheck = false;
          nativeBuildInputs = [ pkgs.installShellFiles ];
          postInstall = ''
            install -Dm644 models/demo.gguf $out/share/welte/demo.gguf
            $out/bin/welte man man
            installManPage man/*.1
            for shell in bash zsh fish; do $out/bin/welte completions $shell > welte.$shell; done
            installShellCompletion welte.{bash,zsh,fish}
          '';
          meta = {
            description = "LLM inference engine";
            license = with pkgs.lib.licenses; [ mit asl20 ];
            mainProgram = "welte";
          };
        };
      });
    };
}
