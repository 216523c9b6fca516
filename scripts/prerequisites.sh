#!/bin/sh
# Name what is missing on this machine, with the package that brings it (Debian and Ubuntu names), before anything else fails.
python=${1:-python3}
fail=0
need() { echo "missing: $1 - install it with: apt-get install $2" >&2; fail=1; }
command -v gcc >/dev/null 2>&1 || need "gcc" gcc
command -v "$python" >/dev/null 2>&1 || { need "$python" python3; exit 1; }
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || need "Python 3.11 or newer (found $("$python" -V 2>&1))" python3
"$python" -c 'import venv, ensurepip' 2>/dev/null || need "Python's venv module" python3-venv
"$python" - <<'EOF2' || need "Python.h (Python's C headers)" python3-dev
import os, sys, sysconfig
sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))
EOF2
"$python" - <<'EOF2' || need "libpython as a shared or position-independent library" libpython3-dev
import os, sys, sysconfig
var = sysconfig.get_config_var
names = [var("INSTSONAME"), var("LDLIBRARY"), var("LIBRARY")]
folders = [var("LIBDIR"), os.path.join(var("LIBDIR") or "", var("MULTIARCH") or ""), var("LIBPL")]
sys.exit(not any(n and f and os.path.exists(os.path.join(f, n)) for n in names for f in folders))
EOF2
exit $fail
