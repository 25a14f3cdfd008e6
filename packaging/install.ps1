<#
.SYNOPSIS
Installs the `tercet` command on Windows.

.DESCRIPTION
Downloads the archive for this machine, compares its SHA-256 with the one in SHA256SUMS, and puts the program into a
folder. Nothing is left behind if a step fails.

.PARAMETER BaseUrl
Folder with SHA256SUMS and the archives; also the environment variable TERCET_BASE_URL.

.PARAMETER Prefix
The program goes to PREFIX\bin; also TERCET_PREFIX; default: .local in the user's folder.

.PARAMETER Target
Archive for another platform, such as x86_64-pc-windows-msvc.

.EXAMPLE
$env:TERCET_BASE_URL = 'URL'; .\install.ps1
#>
param(
    [string] $BaseUrl = $env:TERCET_BASE_URL,
    [string] $Prefix = $env:TERCET_PREFIX,
    [string] $Target
)

Set-StrictMode -Version Latest
$ErrorActionPreference = 'Stop'
# Progress bars make downloads slow in Windows PowerShell.
$ProgressPreference = 'SilentlyContinue'

function Stop-Install([string] $Message, [string] $Remedy) {
    throw "$Message`n  remedy: $Remedy"
}

function Find-Target {
    # A 32-bit PowerShell sees the machine's own architecture in the second variable.
    $machine = if ($env:PROCESSOR_ARCHITEW6432) { $env:PROCESSOR_ARCHITEW6432 } else { $env:PROCESSOR_ARCHITECTURE }
    switch ($machine) {
        'AMD64' { 'x86_64-pc-windows-msvc' }
        # Windows on ARM runs programs for x86-64.
        'ARM64' { 'x86_64-pc-windows-msvc' }
        default { Stop-Install "there is no archive for processors of type $machine" 'build from source: cargo install' }
    }
}

function Get-File([string] $Name, [string] $Path) {
    try {
        Invoke-WebRequest -UseBasicParsing -Uri "$BaseUrl/$Name" -OutFile $Path
    } catch {
        Stop-Install "cannot download $BaseUrl/${Name}: $($_.Exception.Message)" 'check the URL and the network'
    }
}

# `cargo xtask dist` replaces the default by the folder of the release.
if (-not $BaseUrl) { $BaseUrl = '@BASE_URL@' }
if ($BaseUrl.StartsWith('@')) {
    Stop-Install 'the URL of the archives is not known' 'set TERCET_BASE_URL or use -BaseUrl'
}
$BaseUrl = $BaseUrl.TrimEnd('/')
if (-not $Prefix) { $Prefix = Join-Path $HOME '.local' }
if (-not $Target) { $Target = Find-Target }
$bin = Join-Path $Prefix 'bin'
$work = Join-Path $bin ".tercet-install-$([guid]::NewGuid().ToString('N'))"

try {
    try {
        New-Item -ItemType Directory -Force -Path $work | Out-Null
    } catch {
        Stop-Install "cannot write to ${bin}: $($_.Exception.Message)" 'use -Prefix with a folder that you may write'
    }
    $sums = Join-Path $work 'sums'
    Get-File 'SHA256SUMS' $sums
    $pattern = "^([0-9a-f]{64}) [ *](tercet-[0-9A-Za-z.+-]*-$([regex]::Escape($Target))\.zip)$"
    $line = Get-Content $sums | Where-Object { $_ -match $pattern } | Select-Object -First 1
    if (-not $line) {
        Stop-Install "$BaseUrl has no archive for $Target" 'build from source, or choose another -Target'
    }
    $null = $line -match $pattern
    $expected = $Matches[1]
    $archive = $Matches[2]
    Write-Output "downloading $BaseUrl/$archive"
    $zip = Join-Path $work 'archive.zip'
    Get-File $archive $zip
    $found = (Get-FileHash -Algorithm SHA256 -Path $zip).Hash.ToLowerInvariant()
    if ($found -ne $expected) {
        Stop-Install "$archive has SHA-256 $found, expected $expected; nothing was installed" `
            'run this again; if the digest still differs, do not use this URL'
    }
    Write-Output "SHA-256 is as listed: $found"
    Expand-Archive -Path $zip -DestinationPath $work
    $program = Join-Path (Join-Path $work ($archive -replace '\.zip$', '')) 'tercet.exe'
    $version = & $program --version
    if ($LASTEXITCODE -ne 0) {
        Stop-Install 'the program does not start here; nothing was installed' 'choose another -Target'
    }
    Move-Item -Force -Path $program -Destination (Join-Path $bin 'tercet.exe')
    Write-Output "installed $version"
    Write-Output "  as $(Join-Path $bin 'tercet.exe')"
    if (-not (($env:PATH -split ';') -contains $bin)) {
        Write-Output "  note: $bin is not on the PATH; add it in the settings of environment variables"
    }
    Write-Output "  remove it with: Remove-Item '$(Join-Path $bin 'tercet.exe')'"
} finally {
    if (Test-Path $work) { Remove-Item -Recurse -Force $work }
}
