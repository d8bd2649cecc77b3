#!/bin/sh
# A browser and its driver: installed where that is possible, requested where it is not.
set -eu
has() { command -v "$1" >/dev/null 2>&1; }
if has chromedriver && { has chromium || has google-chrome; }; then exit 0; fi
if has apt-get && [ "$(id -u)" = 0 ]; then
  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium chromium-driver >/dev/null && exit 0
fi
echo "the browser tests need chromium and chromedriver; install them (Debian: apt-get install chromium chromium-driver) and run this again" >&2
exit 1
