__shared__ alignas(16) $element $key_tile[$KEYS][$DIMS + 8];
__shared__ alignas(16) $element $value_tile[$KEYS][$DIMS + 8];
$space::attend($queries, $keys, $values, $out, $length, $dim, $scale, $key_tile, $value_tile);
